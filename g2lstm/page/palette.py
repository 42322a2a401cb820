"""The one palette of pictures, report and pages."""

# ColorBrewer's YlGnBu: darkens steadily, so values can be told apart in grey and by colour-blind people.
HEAT = ("#ffffd9", "#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58")
# By CSS variable, the colour on a light and on a dark page. Pictures are drawn in the light one.
THEME = {
    "ink": ("#1d2530", "#e4e8ee"),
    "quiet": ("#5b6675", "#9aa6b4"),
    "rule": ("#dfe4ea", "#2e3945"),
    "c0": ("#0072b2", "#56b4e9"),
    "c1": ("#c04e00", "#ff8c42"),
    "c2": ("#00805d", "#3fcf9f"),
    "c3": ("#a83f7d", "#e08fc0"),
    "c4": ("#9a6a00", "#e6b840"),
    "c5": ("#5b6470", "#a5adb8"),
}


def css_variables() -> str:
    """The palette as a CSS rule; the element's `color-scheme` chooses between light and dark."""
    colours = [f"--{name}: light-dark({light}, {dark});" for name, (light, dark) in THEME.items()]
    accent = f"--accent: light-dark({HEAT[6]}, {HEAT[3]});"
    return f":root {{ {' '.join(colours)} {accent} --heat: {' '.join(HEAT)}; }}\n"
