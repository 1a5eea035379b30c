import MarkdownIt from "markdown-it";
export { MarkdownIt };
