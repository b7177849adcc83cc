// Ids of chat prompts against jinja2 and Hugging Face `tokenizers` (tests/golden/text/chat.json).
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/text/chat_template.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text {
namespace {

namespace json = boost::json;

json::value read_golden(const std::string& name) {
  return json::parse(
      base::read_file(std::filesystem::path(QUIRE_SOURCE_DIR "/tests/golden/text") / name).value());
}

Tokenizer tokenizer_of(const json::value& golden_case) {
  json::value golden =
      read_golden("tokenizers/" + std::string(golden_case.at("tokenizer").as_string()) + ".json");
  json::value& file = golden.at("tokenizer");
  json::array& added = file.at("added_tokens").as_array();
  for (const json::value& token : golden_case.at("added_tokens").as_array()) {
    added.push_back(token);
  }
  return Tokenizer::from_json(json::serialize(file), "").value();
}

TEST(ChatIds, AreThoseOfTheRenderedTextAndTextsOfUsersAddNoSpecialToken) {
  const json::value cases = read_golden("chat.json");
  for (const json::value& golden_case : cases.as_array()) {
    const Tokenizer tokenizer = tokenizer_of(golden_case);
    const auto chat = ChatTemplate::parse(std::string(golden_case.at("template").as_string()));
    ASSERT_TRUE(chat.ok()) << golden_case;
    const auto variables =
        base::parse_json(json::serialize(golden_case.at("variables")), "variables");
    const auto prompt = chat->render(*variables);
    ASSERT_TRUE(prompt.ok()) << prompt.error().message;
    const std::vector<TokenId> ids = encode_prompt(tokenizer, *prompt).value();
    if (const json::value* expected = golden_case.as_object().if_contains("ids")) {
      EXPECT_EQ(ids, json::value_to<std::vector<TokenId>>(*expected)) << golden_case;
      continue;
    }
    const TokenId first = golden_case.at("added_tokens").at(0).at("id").to_number<TokenId>();
    EXPECT_EQ(std::ranges::count_if(ids, [&](TokenId id) { return id >= first; }),
              golden_case.at("num_special").to_number<std::int64_t>())
        << golden_case;
  }
}

}  // namespace
}  // namespace quire::text
