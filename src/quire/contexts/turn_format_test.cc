#include "quire/contexts/turn_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/base/json.h"
#include "quire/engine/model_bundle.h"
#include "quire/text/chat_template.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::contexts {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::string kModel = QUIRE_SOURCE_DIR "/models/cardfile/model";

// Returns the demo model's tokenizer with another template; "" for none.
engine::TextBundle with_template(const std::string& source) {
  engine::TextBundle text{.tokenizer = text::Tokenizer::from_folder(kModel).value(),
                          .bos_token = "<bos>",
                          .eos_token = "<eos>"};
  if (!source.empty()) {
    text.chat_template = text::ChatTemplate::parse(source).value();
  }
  return text;
}

TokenId token(const engine::TextBundle& text, const std::string& spelling) {
  const std::vector<TokenId> ids =
      text.tokenizer.encode(spelling, {.add_special_tokens = false}).value();
  EXPECT_EQ(ids.size(), 1U) << spelling;
  return ids.front();
}

// Returns the model's variables as a template shows them, or the error.
std::string shown(const std::string& source, base::Json variables = base::Json::object()) {
  const auto prompt =
      render_chat(with_template(source), base::Json::array(), false, std::move(variables));
  return prompt.ok() ? prompt->text() : prompt.error().message;
}

TEST(RenderChat, ToolsAndDocumentsThatAreNotGivenAreNone) {
  EXPECT_EQ(shown("{% if tools is not none %}tools{% endif %}{% if tools != none %}!{% endif %}"),
            "");
  EXPECT_EQ(shown("{{ documents is none }} {{ tools is defined }}"), "True True");
  EXPECT_EQ(shown("{{ tools }} {{ documents is none }}",
                  base::Json::object({{"tools", base::Json::array(1)}})),
            "[1] True");
}

TEST(RenderChat, ATemplateSeesTheTokensThatTheModelNamesAndNoOthers) {
  EXPECT_EQ(shown("{{ bos_token }}{{ eos_token }}{{ pad_token }}"), "<bos><eos><pad>");
  EXPECT_EQ(shown("{{ unk_token is defined }}"), "False");
  EXPECT_EQ(shown("{{ pad_token }}", base::Json::object({{"pad_token", "given"}})), "given");
}

TEST(RenderChat, OnlyTheModelsOwnTokensCountAsSuch) {
  const engine::TextBundle text = with_template("{{ pad_token }}{{ mine }}");
  const auto prompt =
      render_chat(text, base::Json::array(), false, base::Json::object({{"mine", "<pad>"}}))
          .value();
  const auto ids = text::encode_prompt(text.tokenizer, prompt).value();
  EXPECT_EQ(ids.front(), token(text, "<pad>"));
  EXPECT_GT(ids.size(), 2U);
}

TEST(TurnFormat, OfTheDemoModelIsWhatItsTemplateWritesAroundAnAnswer) {
  const auto text = engine::open_text(kModel).value();
  const TurnFormat format = make_turn_format(*text);
  EXPECT_THAT(format.opening, ElementsAre(token(*text, "<a>")));
  EXPECT_THAT(format.closing, ElementsAre(token(*text, "<eos>")));
  EXPECT_EQ(format.bos, token(*text, "<bos>"));
}

TEST(TurnFormat, ATemplateThatWritesNothingAroundAnAnswerHasNoFormat) {
  const engine::TextBundle text =
      with_template("{% for message in messages %}{{ message['content'] }}{% endfor %}");
  const TurnFormat format = make_turn_format(text);
  EXPECT_THAT(format.opening, IsEmpty());
  EXPECT_THAT(format.closing, IsEmpty());
  EXPECT_FALSE(format.bos.has_value()) << "the template does not write it";
}

TEST(TurnFormat, BosIsWhatThePromptsOfTheTemplateBeginWith) {
  const engine::TextBundle text = with_template(
      "{{ bos_token }}{% for message in messages %}<q> {{ message['content'] }}{% endfor %}"
      "{% if add_generation_prompt %}<a>{% endif %}");
  const TurnFormat format = make_turn_format(text);
  EXPECT_EQ(format.bos, token(text, "<bos>"));
  EXPECT_THAT(format.opening, ElementsAre(token(text, "<a>")));
}

TEST(TurnFormat, WithoutATemplateBosIsAsTheTokenizerDoesIt) {
  const TurnFormat format = make_turn_format(with_template(""));
  EXPECT_THAT(format.opening, IsEmpty());
  EXPECT_THAT(format.closing, IsEmpty());
  EXPECT_FALSE(format.bos.has_value()) << "this tokenizer adds none";
}

}  // namespace
}  // namespace quire::contexts
