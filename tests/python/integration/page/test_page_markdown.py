"""Markdown on the chat page: what becomes of it, that a stream draws what the whole text draws, that text stays text.

The modules run in the browser, on the page itself and so under its policy.
"""

# Texts stand as they are, one a line.
# ruff: noqa: E501
from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_server import FakeServer, calls, says
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from person import SECONDS, ask, converse, until, wait_for_end

# text -> its HTML, once drawn whole and once in the given pieces
DRAW = """async ([pieces]) => {
  const { MarkdownStream, drawMarkdown } = await import("/static/markdown_view.js");
  const [streamed, whole] = [document.createElement("div"), document.createElement("div")];
  const stream = new MarkdownStream(streamed);
  for (const piece of pieces) stream.push(piece);
  drawMarkdown(whole, pieces.join(""));
  for (const node of [streamed, whole]) {
    node.normalize();
    for (const each of node.querySelectorAll("*")) {
      for (const name of ["dir", "target", "rel", "tabindex", "role", "aria-label", "title"]) each.removeAttribute(name);
    }
    for (const button of node.querySelectorAll("figcaption button")) button.remove();
  }
  return [streamed.innerHTML, whole.innerHTML];
}"""
# What a text may become.
SURVEY = """() => {
  const inside = [...document.querySelectorAll("#messages .markdown *, #messages .bubble *, #messages .thought-text *")];
  return {
    tags: [...new Set(inside.filter((e) => !e.closest("button")).map((e) => e.localName))],
    attributes: [...new Set(inside.flatMap((e) => e.getAttributeNames()))],
    protocols: [...new Set([...document.querySelectorAll("#messages a")].map((a) => a.protocol))],
    hacked: window.hacked ?? null,
  };
}"""
TAGS = {
    "p",
    "br",
    "strong",
    "em",
    "del",
    "code",
    "a",
    "h3",
    "h4",
    "h5",
    "h6",
    "ul",
    "ol",
    "li",
    "input",
    "blockquote",
    "hr",
}
TAGS |= {"figure", "figcaption", "pre", "span", "button", "div", "table", "thead", "tbody", "tr", "th", "td"}
ATTRIBUTES = {
    "dir",
    "class",
    "href",
    "title",
    "target",
    "rel",
    "start",
    "type",
    "disabled",
    "checked",
    "aria-label",
    "tabindex",
}
ATTRIBUTES |= {"role", "aria-hidden", "viewBox"}


@pytest.fixture(scope="module")
def paper(browser: Any) -> Iterator[Any]:
    """A page to draw on."""
    fake = FakeServer()
    server = fake.start()
    page = browser.new_page()
    page.set_default_timeout(SECONDS * 1000)
    page.goto(fake.url)
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    page.close()
    server.shutdown()
    server.server_close()


def drawn(page: Any, text: str) -> str:
    streamed, whole = page.evaluate(DRAW, [list(text)])
    assert streamed == whole
    result: str = whole
    return result


CASES = [
    ("plain", "<p>plain</p>"),
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    (
        "*a* **b** ***c*** ~~d~~ `e`",
        "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> <code>e</code></p>",
    ),
    ("2 * 3 * 4, snake_case_name, **foo*bar**", "<p>2 * 3 * 4, snake_case_name, <strong>foo*bar</strong></p>"),
    ("**中文。**后面", "<p><strong>中文。</strong>后面</p>"),
    (r"\*no\* \_no\_ &amp; &nope;", "<p>*no* _no_ &amp; &amp;nope;</p>"),
    ("`` a ` b ``", "<p><code>a ` b</code></p>"),
    ("# One\n### Three #\n####### seven", "<h3>One</h3><h5>Three</h5><p>####### seven</p>"),
    ("- a\n- b\n  - c\n\n1. x\n2. y", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>x</li><li>y</li></ol>"),
    ("3. a\n\n   more\n4. b", '<ol start="3"><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>'),
    ("1. a\n  - under two spaces", "<ol><li>a<ul><li>under two spaces</li></ul></li></ol>"),
    (
        "- [x] done\n- [ ] open",
        '<ul><li class="task"><input type="checkbox" disabled="" checked="">done</li><li class="task">'
        '<input type="checkbox" disabled="">open</li></ul>',
    ),
    (
        "> quoted\nlazily\n> > deeper",
        "<blockquote><p>quoted<br>lazily</p><blockquote><p>deeper</p></blockquote></blockquote>",
    ),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    (
        "```\nx < y\n\n  z\n```\nafter",
        '<figure class="code"><figcaption><span>text</span></figcaption><pre><code>x &lt; y\n\n  z'
        "</code></pre></figure><p>after</p>",
    ),
    (
        "```py\nif x: # why\n",
        '<figure class="code"><figcaption><span>py</span></figcaption><pre><code><span class="code-keyword">if</span>'
        ' x: <span class="code-comment"># why</span>\n</code></pre></figure>',
    ),
    (
        "~~~\n```\n~~~~",
        '<figure class="code"><figcaption><span>text</span></figcaption><pre><code>```</code></pre></figure>',
    ),
    (
        "- a\n  ```\n  b\n\n  c\n  ```",
        '<ul><li>a<figure class="code"><figcaption><span>text</span></figcaption><pre><code>b\n\nc</code>'
        "</pre></figure></li></ul>",
    ),
    (
        "|a|b|\n|-|-:|\n|1|`x\\|y`|\n|2|",
        '<div class="table"><table><thead><tr><th>a</th><th class="align-right">b</th></tr></thead><tbody>'
        '<tr><td>1</td><td class="align-right"><code>x|y</code></td></tr><tr><td>2</td></tr></tbody></table></div>',
    ),
    ("a | b\nno table", "<p>a | b<br>no table</p>"),
    ('[text](https://a.b/c_d_(e) "t")', '<p><a href="https://a.b/c_d_(e)">text</a></p>'),
    (
        "see https://a.b/c?d=1. (http://e.f)",
        '<p>see <a href="https://a.b/c?d=1">https://a.b/c?d=1</a>. (<a href="http://e.f/">http://e.f</a>)</p>',
    ),
    ("![alt](https://a.b/c.png)", '<p><a href="https://a.b/c.png" class="picture">alt</a></p>'),
    (
        "costs $5 or $10, $a_1 + b_2$, \\(x*y*z\\)",
        '<p>costs $5 or $10, <code class="math">a_1 + b_2</code>, <code class="math">x*y*z</code></p>',
    ),
    ("$$\nx^2\n$$\n\\[ y \\]", '<pre class="math">x^2</pre><pre class="math">y</pre>'),
    ("<b>bold</b> <script>hacked=1</script>", "<p>&lt;b&gt;bold&lt;/b&gt; &lt;script&gt;hacked=1&lt;/script&gt;</p>"),
    (
        "[a](javascript:alert(1)) [b](data:text/html,x) [c](JAVASCRIPT&#58;x) [d](/x)",
        "<p>[a](javascript:alert(1)) [b](data:text/html,x) [c](JAVASCRIPT&amp;#58;x) [d](/x)</p>",
    ),
    ("a\u0000b\r\nc", "<p>a\ufffdb<br>c</p>"),
    ("`\u202ecod\u202c`", "<p><code>⟨U+202E⟩cod⟨U+202C⟩</code></p>"),
]


@pytest.mark.parametrize(("text", "html"), CASES, ids=[text[:20] for text, _ in CASES])
def test_what_becomes_of_it(paper: Any, text: str, html: str) -> None:
    assert drawn(paper, text) == html


MARKS = [
    *"*_~`[]()!|$<&\\\t\r\0",
    "\n",
    "\n\n",
    "**",
    "``",
    "$$",
    "$$\n",
    "\\[",
    "\\]",
    "](",
    "](https://a.b/c)",
    "[x] ",
]
MARKS += [
    "- ",
    "* ",
    "1. ",
    "2) ",
    "> ",
    "# ",
    "```",
    "```py\n",
    "~~~",
    "---\n",
    "|-|-|\n",
    "| a | b |\n",
    "    ",
    "  ",
]
MARKS += ["https://a.b/c", "word", "a b", "中文", "。", "😀", "\u202e", '"""', "# x", "/*", "'"]
PIECES = st.one_of(st.sampled_from(MARKS), st.text(max_size=8))


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(PIECES, max_size=40))
@example(["```py\n", "```py\n"])  # a line that closes the code until it goes on
def test_a_stream_draws_what_the_whole_text_draws(paper: Any, pieces: list[str]) -> None:
    pieces = [piece.encode("utf-8", "ignore").decode() for piece in pieces]
    streamed, whole = paper.evaluate(DRAW, [pieces])
    assert streamed == whole
    by_character, same = paper.evaluate(DRAW, [list("".join(pieces))])
    assert by_character == same == whole


def test_long_code_is_laid_out_in_pieces(paper: Any) -> None:
    lines = "\n".join(f"line {i}" for i in range(250))
    html = drawn(paper, f"```\n{lines}\n```")
    assert html.count('<span class="piece">') == 2
    paper.evaluate(
        """async ([text]) => {
             const { drawMarkdown } = await import("/static/markdown_view.js");
             const div = document.getElementById("messages");
             div.replaceChildren();
             div.className = "markdown";
             drawMarkdown(div, text);
           }""",
        [f"```\n{lines}\n```"],
    )
    assert paper.locator("#messages pre").inner_text() == lines
    height = paper.evaluate("document.querySelector('#messages pre code').getBoundingClientRect().height")
    one = paper.evaluate("parseFloat(getComputedStyle(document.querySelector('#messages pre')).lineHeight)")
    assert round(height / one) == 250  # no line too many between two pieces


NESTED = [
    "> " * 3000,
    "- " * 3000,
    "*a " * 3000,
    "**a*" * 2000,
    "[" * 5000,
    "![" * 3000,
    "[](" * 3000,
    "`" * 5001,
    "$a" * 3000,
]
NESTED += [
    "\n".join(" " * (2 * i) + "- a" for i in range(300)),
    "| a " * 2000 + "\n" + "|-" * 2000,
    "a*" * 4000,
    "\\(" * 3000,
]
NESTED += ["[a](b" * 3000, "https://a." * 3000, "_a " * 5000, "```\n" * 3000, "- ```\n" * 2000, "$$\n" * 3000]


def test_no_text_takes_long(paper: Any) -> None:
    """Each takes milliseconds; what is not linear takes longer than a test may, and what recurses without a limit fails."""
    for text in NESTED:
        paper.evaluate(DRAW, [[text]])


NASTY = "\n\n".join(
    [
        "<script>window.hacked = 1</script>",
        "<img src=x onerror='window.hacked = 1'> <svg onload=hacked=1> <iframe srcdoc='<script>parent.hacked=1</script>'>",
        "<style>body { display: none }</style><link rel=stylesheet href=//evil.example/x.css>",
        "[click](javascript:window.hacked=1) [click](jAvAsCrIpT:window.hacked=1) [x](data:text/html,<script>hacked=1</script>)",
        "[x](vbscript:x) [x](file:///etc/passwd) [x](blob:x) [x](//evil.example) [x](\tjavascript:window.hacked=1)",
        '[x](https://a.b/" onmouseover="window.hacked=1) ![](https://evil.example/track.png) ![x](data:image/png;base64,AAAA)',
        "<https://a.b/' onclick='hacked=1> <javascript:hacked=1> https://a.b/\"onclick=hacked=1",
        "```<img src=x onerror=hacked=1>\n</code></pre><script>hacked=1</script>\n```",
        '``` " onclick="hacked=1\n<script>hacked=1</script>\n```',
        "| <script>hacked=1</script> | [x](javascript:hacked=1) |\n|---|---|\n| <b onclick=hacked=1>x</b> | &lt;script&gt;hacked=1&lt;/script&gt; |",
        "$<img src=x onerror=hacked=1>$ \\(<script>hacked=1</script>\\) `<script>hacked=1</script>`",
        "\u202emoc.elpmaxe\u202c \u2066x\u2069 \u0000 \ufeff {{constructor.constructor('hacked=1')()}} ${hacked=1}",
    ]
)


def test_no_text_becomes_more_than_text(fake: FakeServer, open_page: Any) -> None:
    asked: list[str] = []
    fake.replies = [
        says(NASTY, thought=NASTY, size=7),
        calls((NASTY, NASTY), (NASTY, '{"x": "<script>hacked=1</script>"}')),
    ]
    page = open_page(fake.url)
    page.on("request", lambda request: asked.append(request.url))
    converse(page, NASTY)
    page.click(".thought summary")
    page.hover(".conversations li")
    converse(page, "x")
    for field in page.locator(".result-form textarea").all():
        field.fill(NASTY)
    page.click("text=Go on with the result")
    page.wait_for_selector("text=Hello.")
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    found = page.evaluate(SURVEY)
    assert found["hacked"] is None and set(found["tags"]) <= TAGS and set(found["attributes"]) <= ATTRIBUTES
    assert set(found["protocols"]) <= {"http:", "https:", "mailto:"}
    assert page.locator("#messages a:not([rel~=noopener][rel~=noreferrer])").count() == 0
    assert page.locator("#messages :is(script, style, iframe, link, object, embed)").count() == 0
    assert page.locator(".bubble").first.inner_text() == NASTY.replace("\u0000", "\ufffd")
    assert page.is_visible("#question")
    outside = [address for address in asked if not address.startswith(fake.url)]
    assert outside == [], "the page asked somebody else"
    assert "\u202e" not in page.locator("#title").inner_text() + page.title()


def test_a_policy_stands_behind_it(paper: Any) -> None:
    """Should a bug ever make markup of a text, the browser refuses it."""
    refused = paper.evaluate(
        """() => {
             const div = document.createElement("div");
             try { div.innerHTML = "<b>x</b>"; return div.childElementCount; } catch (error) { return error.name; }
           }"""
    )
    assert refused == "TypeError"
    assert paper.evaluate("fetch('https://example.com/').then(() => 'sent', (error) => error.name)") == "TypeError"


def test_a_long_answer_is_drawn_once(fake: FakeServer, open_page: Any) -> None:
    """100 KB in 4,000 events: what has ended is never touched again, so that an event's cost does not grow."""
    block = "Some **words** and `code` in a line.\n\n- one\n- two\n\n```py\nx = 1  # one\n```\n\n"
    n_blocks = 100_000 // len(block)
    gate = threading.Event()
    first, rest = says(block * (n_blocks // 2), size=25)[:-2], says(block * (n_blocks - n_blocks // 2), size=25)
    fake.replies = [[*first, gate, *rest]]
    page = open_page(fake.url)
    ask(page, "Much.")
    until(page, f"document.querySelectorAll('.markdown figure').length === {n_blocks // 2}")
    page.evaluate("for (const node of document.querySelector('.markdown').children) node.drawnBefore = true")
    gate.set()
    wait_for_end(page)
    kept = page.evaluate("[...document.querySelector('.markdown').children].filter((node) => node.drawnBefore).length")
    assert page.locator(".markdown figure").count() == page.locator(".markdown p").count() == n_blocks
    assert kept >= 3 * (n_blocks // 2) - 1  # all but the one that could still have grown
