import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";

// One file that loads nothing from elsewhere: scripts and styles are in it.
export default defineConfig({
  plugins: [svelte(), viteSingleFile({ removeViteModuleLoader: true })],
  build: { target: "es2022", rollupOptions: { input: "report.html" } },
});
