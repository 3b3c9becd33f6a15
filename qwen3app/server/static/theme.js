// Sets the theme that was chosen before the page is first drawn. No module: it must run at once.
try {
  const theme = localStorage.getItem("qwen3.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // the browser keeps nothing: the system's theme
}
