// Templates against jinja2 3.1.6: tests/golden/templates, made by make_goldens.py there.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <string>

#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"

namespace quire::text {
namespace {

namespace json = boost::json;

const std::string kFolder = QUIRE_SOURCE_DIR "/tests/golden/templates/";

std::string read(const std::string& path) {
  auto text = base::read_file(path);
  EXPECT_TRUE(text.ok()) << path;
  return text.ok() ? *text : std::string();
}

class TemplateGoldens : public testing::Test {
 protected:
  TemplateGoldens() : goldens_(json::parse(read(kFolder + "goldens.json")).as_object()) {}

  // Returns the text of `source`, or nullopt where it is refused.
  Result<std::string> render(const std::string& source, const json::object& variables) const {
    QUIRE_TRY(const auto parsed, ChatTemplate::parse(source));
    RenderOptions options;
    options.now = std::chrono::local_seconds(
        std::chrono::seconds(goldens_.at("now").to_number<std::int64_t>()));
    QUIRE_TRY(const auto read, base::parse_json(json::serialize(variables), "variables"));
    QUIRE_TRY(const auto prompt, parsed.render(read, options));
    return prompt.text();
  }

  void expect_equal(const std::string& source, const json::object& variables,
                    const json::value& expected, const std::string& what) const {
    const auto text = render(source, variables);
    if (expected.is_null()) {
      EXPECT_FALSE(text.ok()) << what << ": jinja2 refuses, rendered as " << *text;
    } else if (text.ok()) {
      EXPECT_EQ(*text, std::string_view(expected.as_string())) << what;
    } else {
      ADD_FAILURE() << what << ": refused: " << text.error().message;
    }
  }

  json::object goldens_;
};

TEST_F(TemplateGoldens, ShapesOfRealTemplatesRenderAsJinja2Does) {
  const auto& conversations = goldens_.at("conversations").as_object();
  for (const auto& [shape, renderings] : goldens_.at("shapes").as_object()) {
    const std::string source = read(kFolder + "shapes/" + std::string(shape) + ".jinja");
    for (const auto& [name, text] : renderings.as_object()) {
      expect_equal(source, conversations.at(name).as_object(), text,
                   std::string(shape) + " [" + std::string(name) + "]");
    }
  }
}

TEST_F(TemplateGoldens, SnippetsRenderAsJinja2Does) {
  const auto& variables = goldens_.at("snippet_variables").as_object();
  for (const auto& snippet : goldens_.at("snippets").as_array()) {
    const std::string source(snippet.at(0).as_string());
    expect_equal(source, variables, snippet.at(1), source);
  }
}

}  // namespace
}  // namespace quire::text
