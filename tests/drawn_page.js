// SPDX-License-Identifier: Apache-2.0
// Draws the page of a report as a browser would: reads the page, writes what its script adds to the body as HTML.
"use strict";
const escaped = text => String(text).replace(/[&<>"]/g, found => `&#${found.charCodeAt(0)};`);

class Element {
  constructor(tag) {
    this.tag = tag;
    this.attributes = [];
    this.children = [];
  }
  setAttribute(name, value) {
    this.attributes.push(` ${name}="${escaped(value)}"`);
  }
  append(...children) {
    this.children.push(...children);
  }
  toString() {
    const inside = this.children.map(child => child instanceof Element ? child.toString() : escaped(child)).join("");
    return `<${this.tag}${this.attributes.join("")}>${inside}` + (this.tag === "wbr" ? "" : `</${this.tag}>`);
  }
}

const page = require("fs").readFileSync(0, "utf8");
const found = name => page.match(new RegExp(`<script${name}>([^<]*(?:<(?!/script>)[^<]*)*)</script>`))[1];
const document = {
  body: new Element("body"),
  createElement: tag => new Element(tag),
  createElementNS: (space, tag) => new Element(tag),
  getElementById: () => ({textContent: found(" id=data type=application/json")}),
};
require("vm").runInNewContext(found(""), {document});
process.stdout.write(`<title>${escaped(document.title)}</title>${document.body}`);
