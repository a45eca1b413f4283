import { render } from "preact";
import { App } from "./app.tsx";
import { listenToKeys } from "./keys.ts";
import { follow } from "./live.ts";
import { learnWho } from "./me.ts";
import { remember } from "./moments.ts";
import { followLinks } from "./route.ts";
import { applyTheme } from "./theme.ts";
import "./style.css";

applyTheme();
followLinks();
follow();
learnWho();
remember();
listenToKeys();
const place = document.getElementById("app");
if (place !== null) render(<App />, place);
