import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";

// One file that loads nothing from elsewhere: scripts and styles are in it. The mode is the page: report or console.
export default defineConfig(({ mode }) => ({
  plugins: [svelte(), viteSingleFile({ removeViteModuleLoader: true })],
  build: { target: "es2022", emptyOutDir: false, rollupOptions: { input: `${mode}.html` } },
}));
