// Restore points of chats: what the next turn, another answer and an edit of the last message
// compute behind a long history. Oracle: the same prompt computed from its first token. Models: the
// tiny ones of tests/golden/model, with a tokenizer of single letters and a template in ChatML.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chat.h"
#include "quire/llm.h"
#include "quire/tokenizer.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::int64_t kVocabulary = 200;
constexpr const char* kTemplate =
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + "
    "'<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{%- "
    "endif "
    "%}{%- endif %}";

// Returns a tokenizer whose every letter is a token.
json::object letters() {
  json::array added;
  json::object vocabulary;
  for (const char* special : {"<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>"}) {
    const std::int64_t id = std::ssize(added);
    vocabulary[special] = id;
    added.push_back(json::object{{"id", id},
                                 {"content", special},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
  }
  for (char letter = '!'; letter <= '~'; ++letter) {
    vocabulary[std::string(1, letter)] = std::ssize(vocabulary);
  }
  vocabulary["\xc4\xa0"] = std::ssize(vocabulary);  // a space in the byte alphabet
  vocabulary["\xc4\x8a"] = std::ssize(vocabulary);  // a line feed
  while (std::ssize(vocabulary) < kVocabulary) {
    vocabulary["word" + std::to_string(vocabulary.size())] = std::ssize(vocabulary);
  }
  const json::object bytes = {{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", json::array()}}}};
}

std::string text_of(std::size_t length, std::uint32_t seed) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    text += static_cast<char>('a' + (seed >> 8) % 26);
  }
  return text;
}

void write(const std::filesystem::path& path, const json::value& value) {
  std::ofstream(path) << json::serialize(value);
}

class ChatPoints : public testing::TestWithParam<std::string> {
 protected:
  ChatPoints() {
    const std::filesystem::path from = source_path("tests/golden/model/") + GetParam();
    std::ifstream in(from / "config.json");
    json::object config =
        json::parse(std::string(std::istreambuf_iterator<char>(in), {})).as_object();
    config["max_position_embeddings"] = 16384;
    write(folder_.path() / "config.json", config);
    std::filesystem::copy(from / "model.safetensors", folder_.path() / "model.safetensors");
    write(folder_.path() / "tokenizer.json", letters());
    write(folder_.path() / "tokenizer_config.json",
          json::object{{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"bos_token", "<bos>"},
                       {"eos_token", "<eos>"},
                       {"chat_template", kTemplate}});
  }

  [[nodiscard]] LLM open() const {
    return must(LLM::open(folder_.path().string(), {.dtype = "float32", .threads = 2}));
  }

  // Asks, and expects at most `slack` tokens to be computed beside those behind what was known.
  std::string ask(LLM& llm, const std::vector<ChatMessage>& messages, std::int64_t slack,
                  const std::string& what) {
    constexpr std::int32_t kAnswer = 12;
    const Tokenizer tokenizer = must(llm.tokenizer());
    const Ids ids = must(tokenizer.apply_chat_template(must(to_json(messages))));
    std::int64_t known = 0;
    for (const Ids& history : histories_) {
      known = std::max(known, std::ranges::mismatch(ids, history).in1 - ids.begin());
    }
    const double before = stat(llm, "tokens_computed");
    const GenerationOutput output = must(llm.chat(messages, greedy_to_length(kAnswer)));
    const auto computed =
        static_cast<std::int64_t>(stat(llm, "tokens_computed") - before) - (kAnswer - 1);
    EXPECT_LE(computed, std::max<std::int64_t>(std::ssize(ids) - known, 1) + slack)
        << what << ": " << ids.size() << " tokens, " << known << " of them known";
    EXPECT_EQ(computed, std::ssize(ids) - output.usage.cached_tokens) << what;
    histories_.push_back(joined(ids, output.token_ids));
    EXPECT_EQ(must(llm.forward(ids, ForwardReuse::kExact, ForwardRows::kLast)).logits,
              must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits)
        << what;
    return output.text;
  }

  const TemporaryFolder folder_;
  std::vector<Ids> histories_;  // ids that are known
};

TEST_P(ChatPoints, NextTurnsOtherAnswersAndEditsOfTheLastMessageComputeLittleBehind8kTokens) {
  LLM llm = open();
  std::vector<ChatMessage> messages = {{.role = "system", .content = text_of(60, 1)}};
  for (std::uint32_t turn = 0; turn < 4; ++turn) {
    messages.push_back({.role = "user", .content = text_of(2000, 10 + turn)});
    const std::string answer = ask(llm, messages, turn == 0 ? 0 : 256, "a turn");
    messages.push_back({.role = "assistant", .content = "<think>" + answer});
  }
  // The answers come back otherwise than they were generated, so each turn leaves the history
  // before them.
  messages.push_back({.role = "user", .content = text_of(700, 20)});
  (void)ask(llm, messages, 256, "the next turn");
  (void)ask(llm, messages, 0, "another answer");
  for (const std::size_t place : {0, 100, 350, 699}) {
    std::vector<ChatMessage> edited = messages;
    edited.back().content[place] = '#';
    (void)ask(llm, edited, 256, "an edit at letter " + std::to_string(place));
  }
  std::vector<ChatMessage> replaced = messages;
  replaced.back().content = "#" + text_of(300, 30);
  (void)ask(llm, replaced, 32, "another last message");
}

TEST_P(ChatPoints, ALongMessageThatComesColdCanBeEditedInItsLastTokens) {
  LLM llm = open();
  std::vector<ChatMessage> messages = {{.role = "user", .content = text_of(3000, 1)},
                                       {.role = "assistant", .content = "ok"},
                                       {.role = "user", .content = text_of(1500, 2)}};
  (void)ask(llm, messages, 0, "cold");
  for (const std::size_t place : {0, 700, 1400}) {
    std::vector<ChatMessage> edited = messages;
    edited.back().content[place] = '#';
    (void)ask(llm, edited, 256, "an edit at letter " + std::to_string(place));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ChatPoints, testing::Values("lfm2", "qwen3_5"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
