// Rules for the JavaScript of the inspector. Names that are not defined are found by tsc.

const WIRING = "Program > :matches(VariableDeclaration, ExportNamedDeclaration > VariableDeclaration)[kind!='const']";

export default [
  { ignores: ["**/vendor/**"] },
  {
    rules: {
      "array-callback-return": "error",
      "consistent-return": "off", // an event's handler returns nothing, early or late
      curly: ["error", "multi-line"],
      eqeqeq: "error",
      "max-len": ["error", { code: 120 }],
      "no-constant-condition": ["error", { checkLoops: false }],
      "no-duplicate-imports": "error",
      "no-else-return": "error",
      "no-eval": "error",
      "no-fallthrough": "error",
      "no-implied-eval": "error",
      "no-restricted-syntax": ["error", { selector: WIRING, message: "A module keeps no state: pass it." }],
      "no-shadow": "error",
      "no-unneeded-ternary": "error",
      "no-unused-vars": ["error", { ignoreRestSiblings: true, argsIgnorePattern: "^_" }],
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
  },
];
