#include "report/escape.h"

#include "testing.h"

using namespace faultline;

TEST_CASE("clean text is valid UTF-8 on one line") {
  CHECK(clean_text("plain é 日本") == "plain é 日本");
  CHECK(clean_text("a\nb\tc\x01"
                   "d\x7F") == "a b c d ");
  CHECK(clean_text("cut \xE2\x82") == "cut \xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(clean_text("overlong \xC0\xAF") == "overlong \xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(clean_text("surrogate \xED\xA0\x80") == "surrogate \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(clean_text("\xEF\xBF\xBF") == "\xEF\xBF\xBD");
  CHECK(clean_text("\xF4\x90\x80\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(clean_text("\xE2\x80\xAEreversed") == "reversed");
  CHECK(clean_text(std::string_view("nul\0!", 5)) == "nul !");
}

TEST_CASE("Markdown text has no markup of its own, and names stay readable") {
  CHECK(markdown_text("kv_cache_dtype") == "kv_cache_dtype");
  CHECK(markdown_text("_emphasis_") == "\\_emphasis\\_");
  CHECK(markdown_text("a|b\nc") == "a\\|b c");
  CHECK(markdown_text("`code` *x* [l](u) ~~s~~") == "\\`code\\` \\*x\\* \\[l\\](u) \\~\\~s\\~\\~");
  CHECK(markdown_text("<b>&amp;") == "&lt;b&gt;&amp;amp;");
  CHECK(markdown_text("a\\|b") == "a\\\\\\|b");
}

TEST_CASE("a Markdown code span holds any text") {
  CHECK(markdown_code("x", false) == "`x`");
  CHECK(markdown_code("a`b``c", false) == "```a`b``c```");
  CHECK(markdown_code("`", false) == "`` ` ``");
  CHECK(markdown_code("a|b", true) == "`a\\|b`");
  CHECK(markdown_code("a|b", false) == "`a|b`");
  CHECK(markdown_code("a\nb", false) == "`a b`");
  CHECK(markdown_code("", false).empty());
  CHECK(markdown_code("  ", true).empty());
}

TEST_CASE("XML text cannot end its element or attribute") {
  CHECK(xml_text("<a href=\"x\" b='y'>&</a>") == "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;&lt;/a&gt;");
  CHECK(xml_text("]]>\x0B") == "]]&gt; ");
}
