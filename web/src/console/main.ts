// The console: shows what a cluster does while it does it.
import { mount } from "svelte";
import "../style.css";
import "./console.css";
import Console from "./Console.svelte";

const target = document.getElementById("page");
if (target) mount(Console, { target });
