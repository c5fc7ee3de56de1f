// Sets the theme before anything is painted, so that a dark page never flashes white. A classic script for that reason.
(function () {
  "use strict";
  var kept = null;
  try { kept = localStorage.getItem("gradbus.theme"); } catch (e) { /* storage may be refused: then the system decides */ }
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
})();
