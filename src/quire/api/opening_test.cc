// Options of LLM::open that change what is around a model: its chat template, and its log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tokenizer.h"

namespace quire {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Pair;
using testing::StartsWith;

constexpr const char* kTemplate = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
constexpr const char* kMessages = R"([{"role": "user", "content": "hello"}])";

TEST(ChatTemplate, OfTheOptionsReplacesTheModelsOwn) {
  const LLM llm = open_demo({.chat_template = kTemplate});
  EXPECT_EQ(must(must(llm.tokenizer()).render_chat_template(kMessages, true)), "<hello>");
}

TEST(ChatTemplate, MayBeAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "own.jinja";
  std::ofstream(path) << kTemplate;
  const LLM llm = open_demo({.chat_template = path});
  EXPECT_EQ(must(must(llm.tokenizer()).render_chat_template(kMessages, true)), "<hello>");
}

TEST(ChatTemplate, ThatCannotBeUsedIsRefusedByName) {
  const std::pair<const char*, ErrorCode> wrong[] = {{"{% if %}", ErrorCode::kInvalidArgument},
                                                     {"/no/such/file.jinja", ErrorCode::kIo}};
  for (const auto& [text, code] : wrong) {
    const auto opened = LLM::open(kModel, here({.threads = 1, .chat_template = text}));
    ASSERT_FALSE(opened.ok()) << text;
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_THAT(opened.error().message, HasSubstr("chat_template"));
  }
  const auto preset = LLM::open("preset:tiny", here({.threads = 1, .chat_template = kTemplate}));
  ASSERT_FALSE(preset.ok());
  EXPECT_EQ(preset.error().code, ErrorCode::kUnsupported) << preset.error().message;
}

// Keeps what a log is told.
struct Records {
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> all;

  static LLMOptions with(const std::shared_ptr<Records>& records, LLMOptions options = {}) {
    options.log = [records](LogLevel level, std::string_view text) {
      const std::lock_guard lock(records->mutex);
      records->all.emplace_back(level, text);
    };
    return options;
  }
};

TEST(Log, HearsOfTheModelThatWasOpened) {
  const auto records = std::make_shared<Records>();
  const LLM llm = open_demo(Records::with(records));
  EXPECT_THAT(records->all, Contains(Pair(LogLevel::kInfo, StartsWith("opened "))));
}

TEST(Log, HearsOfPreemptionsAndOfRequestsThatDoNotFit) {
  const auto records = std::make_shared<Records>();
  LLM llm = open_demo(Records::with(records, {.block_tokens = 16, .kv_budget_bytes = 1 << 20}));
  const auto total = static_cast<std::size_t>(stat(llm, "blocks_total"));
  const Ids kept = some_ids(16 * (total / 2), 1);
  const Sequence held = must(llm.sequence(kept));  // half of the blocks are not to be had
  const auto refused = llm.generate(some_ids(16 * (total * 3 / 4), 2), greedy(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_THAT(records->all,
              Contains(Pair(LogLevel::kError, HasSubstr("the request does not fit now"))));

  const std::vector<Prompt> prompts = {some_ids(16, 3), some_ids(16, 4)};
  const std::vector<SamplingParams> params = {
      greedy_to_length(static_cast<std::int32_t>(16 * (total * 3 / 8)))};
  must(llm.generate_batch(prompts, params));
  ASSERT_GT(stat(llm, "preemptions"), 0);
  EXPECT_THAT(records->all, Contains(Pair(LogLevel::kWarning, HasSubstr("preempted"))));
}

}  // namespace
}  // namespace quire
