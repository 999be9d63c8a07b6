// The console: shows what a cluster does while it does it.
// First: it takes the key of a sign-in link out of the address.
import "./access.svelte";
import { mount } from "svelte";
import "../style.css";
import "./console.css";
import Console from "./Console.svelte";

const target = document.getElementById("page");
if (target) mount(Console, { target });
