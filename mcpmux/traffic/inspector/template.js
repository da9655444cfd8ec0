// URI templates (RFC 6570), without explode and prefix modifiers.

const EXPRESSION = /\{([+#./;?&]?)([^{}]+)\}/g;
/** @type {Record<string, [first: string, between: string, isNamed: boolean]>} */
const OPERATORS = {
  "": ["", ",", false], "+": ["", ",", false], "#": ["#", ",", false], ".": [".", ".", false],
  "/": ["/", "/", false], ";": [";", ";", true], "?": ["?", "&", true], "&": ["&", "&", true],
};

const names = (text) => text.split(",").map((name) => name.replace(/(\*|:\d+)$/, ""));

/** Return the names of the variables, each once. */
export const variables = (template) =>
  [...new Set([...String(template).matchAll(EXPRESSION)].flatMap(([, , text]) => names(text)))];

/** Return the URI with these values; what has none is left out. */
export function expand(template, values) {
  return template.replace(EXPRESSION, (_, operator, text) => {
    const [first, between, isNamed] = OPERATORS[operator];
    const encode = operator === "+" || operator === "#" ? encodeURI : encodeURIComponent;
    const given = names(text).filter((name) => values[name] !== undefined);
    const parts = given.map((name) => (isNamed ? `${name}=` : "") + encode(values[name]));
    return parts.length ? first + parts.join(between) : "";
  });
}
