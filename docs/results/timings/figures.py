"""Pictures of timings beside forecasts, as SVG."""

import math
from html import escape

INK, GRID, DOT, LINE = "#1f2933", "#d9dfe5", "#3b7dbd", "#d9541e"
SHADES = ("#d6e4f0", "#a9c8e4", "#74a5d2", "#3f7cb8", "#1c4f8a", "#0b2a52")
FONT = 'font-family="Helvetica, Arial, sans-serif"'


def text(x, y, words, size=11, anchor="start", colour=INK, weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" font-weight="{weight}">{escape(words)}</text>'


def line(x1, y1, x2, y2, colour=GRID, width=1.0, dash=""):
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def picture(width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" {FONT}>'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def power(exponent):
    return {-3: "1 ns", -2: "10 ns", -1: "0.1 us", 0: "1 us", 1: "10 us", 2: "0.1 ms", 3: "1 ms", 4: "10 ms", 5: "0.1 s", 6: "1 s", 7: "10 s"}[exponent]


def density(rows, name, left, top, size, low, high):
    """Counts of timings by measured and predicted time, darker where there are more."""
    cells, step = {}, 0.06
    for row in rows:
        if row[name] <= 0:
            continue
        place = tuple(math.floor((math.log10(row[key]) - low) / step) for key in ("measured_us", name))
        if all(0 <= at < (high - low) / step for at in place):
            cells[place] = cells.get(place, 0) + 1
    scale, parts, paths = size / (high - low), [], {}
    for exponent in range(low, high + 1):
        at = (exponent - low) * scale
        parts += [line(left + at, top, left + at, top + size), line(left, top + size - at, left + size, top + size - at)]
        parts.append(text(left + at, top + size + 14, power(exponent), 9, "middle"))
        parts.append(text(left - 4, top + size - at + 3, power(exponent), 9, "end"))
    side = step * scale
    for (x, y), count in cells.items():
        shade = min(int(math.log2(count)), len(SHADES) - 1)
        paths.setdefault(shade, []).append(f"M{left + x * side:.1f} {top + size - (y + 1) * side:.1f}h{side:.2f}v{side:.2f}h-{side:.2f}z")
    parts += [f'<path fill="{SHADES[shade]}" d="{"".join(paths[shade])}"/>' for shade in sorted(paths)]
    parts.append(line(left, top + size, left + size, top, LINE, 1.2))
    return parts


def scatter(rows, operators):
    size, gap, parts = 260, 62, []
    names = {"gemm": "products", "generation_attention": "decode attention", "context_attention": "attention of prompts"}
    for column, op in enumerate(operators):
        own = [row for row in rows if row["op"] == op]
        for at, (name, words) in enumerate((("predicted_us", "forecast"), ("ideal_us", "ideal roofline"))):
            left, top = 70 + column * (size + gap), 46 + at * (size + 74)
            low = 0 if at == 0 else -2
            parts += density(own, name, left, top, size, low, 6)
            parts.append(text(left, top - 12, f"{names[op]}: {words}", 13, weight="bold"))
            parts.append(text(left + size / 2, top + size + 30, "measured", 11, "middle"))
    return picture(70 + 3 * (size + gap), 46 + 2 * (size + 74), parts)


def product(*names):
    def value(row):
        result = 1.0
        for name in names:
            result *= row[name] or 0.0
        return result

    return value


def tiles(row):
    return math.ceil(row["m"] / 128) * math.ceil(row["n"] / 128)


IDEAL = ("ideal time, us", product("ideal_us"))
CONTEXT = ("keys", product("context"))
CACHE = ("cached elements", product("batch", "kv_heads", "context", "head_dim"))
# What a term is drawn along, for products and for attention.
ALONG = {
    "write": (("outputs", product("m", "n")), ("outputs", product("batch", "heads", "queries", "head_dim"))),
    "wave": (("tiles of 128 x 128", tiles), ("sequences x heads", product("batch", "heads"))),
    "stream": (("inputs k", product("k")), CONTEXT),
    "block": (("tiles of 128 x 128", tiles), ("sequences x key heads", product("batch", "kv_heads"))),
    "split": (("inputs k", product("k")), CONTEXT),
    "step": (("inputs k", product("k")), CONTEXT),
    "row": (("rows m", product("m")), IDEAL),
    "element": (("elements of the input", product("m", "k")), IDEAL),
    "warm_weights": (("elements of the weights", product("n", "k")), IDEAL),
    "warm_input": (("elements of the input", product("m", "k")), IDEAL),
    "warm_output": (("outputs", product("m", "n")), IDEAL),
    "single": (("rows m", product("m")), IDEAL),
    "sequence": (IDEAL, ("sequences", product("batch"))),
    "warm_cache": (IDEAL, CACHE),
    "pair": (IDEAL, ("queries x keys", product("batch", "heads", "queries", "context"))),
    "vector": (IDEAL, ("query heads per key head", lambda row: row["heads"] / row["kv_heads"])),
    "beyond": (IDEAL, CONTEXT),
    **{f"width_{width}": (IDEAL, CONTEXT) for width in (64, 192, 256, 512)},
}


def explained(rows, name):
    """How much nearer the times are with a term than without it, over the rows where it matters."""
    moved = [row for row in rows if abs(math.log(row["terms_us"] / row[name])) > 0.02]
    if len(moved) < 15:
        return 0.0
    off = lambda row, key: min(abs(math.log(row["measured_us"] / row[key])), 3.0)
    gain = sum(off(row, name) - off(row, "terms_us") for row in moved)
    return gain / math.sqrt(len(moved))


def panel(rows, term, left, top, width, height):
    name = f"without_{term}_us"
    along, value = ALONG.get(term, (IDEAL, IDEAL))[rows[0]["op"] != "gemm"]
    shown = [row for row in rows if abs(math.log(row["terms_us"] / row[name])) > 0.02 and value(row) > 0]
    points = [(math.log10(value(row)), math.log2(row["measured_us"] / row[name]), math.log2(row["terms_us"] / row[name])) for row in shown]
    low, high = math.floor(min(x for x, _, _ in points)), math.ceil(max(x for x, _, _ in points))
    high = max(high, low + 1)
    reach = sorted(y for _, measured, says in points for y in (measured, says))
    bottom, up = math.floor(min(reach[len(reach) // 50], 0)), math.ceil(max(reach[-1 - len(reach) // 50], 0))
    up = max(up, bottom + 1)
    x = lambda at: left + (at - low) / (high - low) * width
    y = lambda at: top + height - (min(max(at, bottom), up) - bottom) / (up - bottom) * height
    parts = []
    for exponent in range(low, high + 1):
        parts += [line(x(exponent), top, x(exponent), top + height), text(x(exponent), top + height + 12, f"1e{exponent}" if abs(exponent) > 3 else f"{10.0 ** exponent:g}", 8.5, "middle")]
    for exponent in range(bottom, up + 1, max(1, (up - bottom) // 5)):
        parts += [line(left, y(exponent), left + width, y(exponent)), text(left - 4, y(exponent) + 3, f"{2.0 ** exponent:g}", 8.5, "end")]
    parts.append(line(left, y(0), left + width, y(0), INK, 1.0, "3 2"))
    every = max(1, len(points) // 350)
    dots = "".join(f"M{x(at):.1f} {y(measured):.1f}h0" for at, measured, _ in points[::every])
    parts.append(f'<path d="{dots}" stroke="{DOT}" stroke-opacity="0.45" stroke-width="3.4" stroke-linecap="round"/>')
    says = "".join(f"M{x(at):.1f} {y(term_says):.1f}h0" for at, _, term_says in points[::every])
    parts.append(f'<path d="{says}" stroke="{LINE}" stroke-opacity="0.75" stroke-width="2.2" stroke-linecap="round"/>')
    first = rows[0]
    parts.append(text(left, top - 18, term, 12, weight="bold"))
    parts.append(text(left, top - 6, " ".join(filter(None, (first["device"], first["stack"], first["dtype"], first["library"]))), 8.5))
    parts.append(text(left + width / 2, top + height + 25, along, 9.5, "middle"))
    return parts


def terms(rows):
    """A panel for each term, of the kernel where it explains most."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in ("device", "stack", "dtype", "library")), []).append(row)
    columns, width, height, parts, drawn = 4, 190, 120, [], 0
    for name in [key for key in rows[0] if key.startswith("without_")]:
        having = [group for group in groups.values() if group[0][name] is not None]
        best = max(having, key=lambda group: explained(group, name), default=None)
        if best is None or explained(best, name) <= 0:
            continue
        left, top = 46 + drawn % columns * (width + 62), 84 + drawn // columns * (height + 72)
        parts += panel(best, name.removeprefix("without_").removesuffix("_us"), left, top, width, height)
        drawn += 1
    wide, high = 46 + columns * (width + 62), 84 + math.ceil(drawn / columns) * (height + 72)
    parts.append(text(46, 24, "Blue: measured time over the forecast without the term. Orange: the forecast with it over the forecast without it.", 12))
    parts.append(text(46, 41, "Each in the kernel where it explains most, timings that it changes by more than 2 %. Where orange follows blue, the term is in the data.", 12))
    return picture(wide, high, parts)
