/** The plot as a file: SVG with its styles written out, PNG drawn from the same elements. */

const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "paint-order", "text-anchor"] as const;

export function svgText(svg: SVGSVGElement): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const originals = [svg, ...svg.querySelectorAll<SVGElement>("*")];
  const copies = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  originals.forEach((original, index) => {
    const made = copies[index];
    if (!made) return;
    if (original.classList.contains("reach")) made.setAttribute("data-drop", "");
    const style = getComputedStyle(original);
    for (const name of KEPT) {
      const value = style.getPropertyValue(name);
      if (value && value !== "none" || name === "fill" || name === "stroke") made.setAttribute(name, value);
    }
    for (const name of ["class", "style", "tabindex", "role"]) made.removeAttribute(name);
  });
  copy.querySelectorAll("[data-drop]").forEach((element) => element.remove());
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", getComputedStyle(document.documentElement).getPropertyValue("--panel") ? paper() : "#fff");
  copy.prepend(ground);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

function paper(): string {
  const panel = document.querySelector(".panel");
  return panel ? getComputedStyle(panel).backgroundColor : "#fff";
}

/**
 * Draws the elements on a canvas one by one. An image of the SVG would need a `data:` or `blob:` source, which the server's content policy
 * forbids.
 */
export async function pngBlob(svg: SVGSVGElement, scale = 2): Promise<Blob> {
  const { width, height } = svg.getBoundingClientRect();
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("this browser has no canvas");
  pen.scale(scale, scale);
  pen.fillStyle = paper();
  pen.fillRect(0, 0, width, height);
  const origin = svg.getScreenCTM()?.inverse();
  const plot = svg.querySelector(".edge") as SVGRectElement | null;
  for (const element of svg.querySelectorAll<SVGGraphicsElement>("rect, line, path, circle, text")) {
    if (element.closest("defs") || element.classList.contains("reach")) continue;
    const matrix = element.getScreenCTM();
    if (!matrix || !origin) continue;
    pen.save();
    if (plot && element.closest("[clip-path]")) {
      pen.beginPath();
      pen.rect(plot.x.baseVal.value, plot.y.baseVal.value, plot.width.baseVal.value, plot.height.baseVal.value);
      pen.clip();
    }
    const { a, b, c, d, e, f } = origin.multiply(matrix);
    pen.transform(a, b, c, d, e, f);
    draw(pen, element);
    pen.restore();
  }
  return await new Promise<Blob>((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture could not be made"))), "image/png"));
}

function draw(pen: CanvasRenderingContext2D, element: SVGGraphicsElement): void {
  const style = getComputedStyle(element);
  const opacity = opacityOf(element);
  const paint = (shape: Path2D) => {
    if (style.fill !== "none") {
      pen.globalAlpha = opacity * Number(style.fillOpacity);
      pen.fillStyle = style.fill;
      pen.fill(shape);
    }
    if (style.stroke !== "none") {
      pen.globalAlpha = opacity * Number(style.strokeOpacity);
      pen.strokeStyle = style.stroke;
      pen.lineWidth = parseFloat(style.strokeWidth);
      pen.setLineDash(style.strokeDasharray === "none" ? [] : style.strokeDasharray.split(/[ ,]+/).map(parseFloat));
      pen.stroke(shape);
    }
  };
  const shape = new Path2D();
  if (element instanceof SVGTextElement) {
    pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    pen.textAlign = style.textAnchor === "end" ? "right" : style.textAnchor === "middle" ? "center" : "left";
    const x = element.x.baseVal.length ? element.x.baseVal.getItem(0).value : 0;
    const y = (element.y.baseVal.length ? element.y.baseVal.getItem(0).value : 0) + (element.dy.baseVal.length ? element.dy.baseVal.getItem(0).value : 0);
    const text = element.textContent ?? "";
    if (style.stroke !== "none") {
      pen.strokeStyle = style.stroke;
      pen.lineWidth = parseFloat(style.strokeWidth);
      pen.lineJoin = "round";
      pen.strokeText(text, x, y);
    }
    pen.globalAlpha = opacity;
    pen.fillStyle = style.fill;
    pen.fillText(text, x, y);
    return;
  }
  if (element instanceof SVGRectElement) shape.rect(element.x.baseVal.value, element.y.baseVal.value, element.width.baseVal.value, element.height.baseVal.value);
  else if (element instanceof SVGLineElement) {
    shape.moveTo(element.x1.baseVal.value, element.y1.baseVal.value);
    shape.lineTo(element.x2.baseVal.value, element.y2.baseVal.value);
  } else if (element instanceof SVGCircleElement) shape.arc(element.cx.baseVal.value, element.cy.baseVal.value, element.r.baseVal.value, 0, 2 * Math.PI);
  else shape.addPath(new Path2D(element.getAttribute("d") ?? ""));
  paint(shape);
}

function opacityOf(element: Element): number {
  let opacity = 1;
  for (let at: Element | null = element; at && at instanceof SVGElement; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
  return opacity;
}

export function save(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  window.setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
