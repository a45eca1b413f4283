import { render } from "preact";
import { App } from "./app.tsx";
import { follow } from "./live.ts";
import { followLinks } from "./route.ts";
import { applyTheme } from "./theme.ts";
import "./style.css";

applyTheme();
followLinks();
follow();
const place = document.getElementById("app");
if (place !== null) render(<App />, place);
