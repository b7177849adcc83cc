// Vocabularies as GGUF metadata states them, small. The real ones: tests/text/gguf_vocab_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "quire/text/tokenizer.h"

namespace quire::text {
namespace {

using Ids = std::vector<TokenId>;
using testing::HasSubstr;

constexpr const char* kMeta = "\u2581";

VocabSpec spm() {
  VocabSpec spec{.model = "llama"};
  const std::string m = kMeta;
  spec.tokens = {"<unk>", "<s>", "</s>", "<0x61>", m, "a", "b", m + "a", "ab", m + "ab"};
  spec.scores = {0, 0, 0, 0, -1, -2, -3, -4, -5, -6};
  spec.token_types = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1};
  return spec;
}

Tokenizer tokenizer_of(VocabSpec spec) {
  auto made = Tokenizer::from_vocab(std::move(spec));
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

TEST(GgufSpm, MergesByScoreAndAddsBosAndSpace) {
  const Tokenizer tokenizer = tokenizer_of(spm());
  // "▁ab": "▁a" (-4) goes before "ab" (-5), then "▁ab".
  EXPECT_EQ(tokenizer.encode("ab").value(), (Ids{1, 9}));
  EXPECT_EQ(tokenizer.encode("ab", {.add_special_tokens = false}).value(), (Ids{9}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 9, 9}).value(), "ab ab");
  EXPECT_EQ(tokenizer.encode("a<s>b").value(), (Ids{1, 7, 1, 4, 6}));
  EXPECT_EQ(tokenizer.bos_token_id(), 1);
  EXPECT_EQ(tokenizer.eos_token_id(), 2);
}

TEST(GgufSpm, FallsBackToBytesOrUnknown) {
  VocabSpec spec = spm();
  spec.tokens[5] = "z";  // no "a" any more, but its byte
  spec.tokens[7] = "zz";
  const Tokenizer tokenizer = tokenizer_of(spec);
  EXPECT_EQ(tokenizer.encode("a", {.add_special_tokens = false}).value(), (Ids{4, 3}));
  EXPECT_EQ(tokenizer.encode("q", {.add_special_tokens = false}).value(), (Ids{4, 0}));
}

TEST(GgufSpm, FlagsOfTheFileCount) {
  VocabSpec spec = spm();
  spec.add_bos = 0;
  spec.add_eos = 1;
  spec.add_space_prefix = 0;
  const Tokenizer tokenizer = tokenizer_of(spec);
  EXPECT_EQ(tokenizer.encode("ab").value(), (Ids{8, 2}));
  EXPECT_EQ(tokenizer.decode(Ids{9}).value(), " ab");
}

TEST(GgufBpe, SplitsAsItsPreSays) {
  VocabSpec spec{.model = "gpt2", .pre = "gpt-2"};
  spec.tokens = {"1", "2", "12", "\u0120", "a", "\u0120a", "<|endoftext|>"};
  spec.token_types = {1, 1, 1, 1, 1, 1, 3};
  spec.merges = {"1 2", "\u0120 a"};
  spec.bos = spec.eos = 6;
  EXPECT_EQ(tokenizer_of(spec).encode("12 a").value(), (Ids{2, 5}));
  spec.pre = "smollm";  // digits one by one
  EXPECT_EQ(tokenizer_of(spec).encode("12 a").value(), (Ids{0, 1, 5}));
  spec.pre = "llama-bpe";  // adds BOS
  EXPECT_EQ(tokenizer_of(spec).encode("12 a").value(), (Ids{6, 2, 5}));
  spec.add_bos = 0;
  EXPECT_EQ(tokenizer_of(spec).encode("12 a<|endoftext|>").value(), (Ids{2, 5, 6}));
  EXPECT_EQ(tokenizer_of(spec).decode(Ids{2, 5, 6}).value(), "12 a");
}

TEST(GgufBert, IsGreedyAndWrapsTheText) {
  VocabSpec spec{.model = "bert"};
  const std::string m = kMeta;
  spec.tokens = {"[UNK]", "[CLS]", "[SEP]", m + "play", "ing", m + "p", m + "!"};
  spec.token_types = {3, 3, 3, 1, 1, 1, 1};
  spec.unk = 0;
  spec.cls = 1;
  spec.sep = 2;
  const Tokenizer tokenizer = tokenizer_of(spec);
  EXPECT_EQ(tokenizer.encode("Pl\u00e1ying! x").value(), (Ids{1, 3, 4, 6, 0, 2}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 3, 4, 2}).value(), "playing");
}

TEST(GgufUgm, TakesTheBestPath) {
  VocabSpec spec{.model = "t5"};
  const std::string m = kMeta;
  spec.tokens = {"<pad>", "</s>", "<unk>", m, "a", "b", "ab", m + "a"};
  spec.scores = {0, 0, 0, -1, -2, -2, -3, -1};
  spec.token_types = {3, 3, 2, 1, 1, 1, 1, 1};
  spec.add_space_prefix = 1;
  const Tokenizer tokenizer = tokenizer_of(spec);
  EXPECT_EQ(tokenizer.encode("ab").value(), (Ids{7, 5, 1}));  // -3; "▁" + "ab" is -4
  EXPECT_EQ(tokenizer.encode("xyz").value(), (Ids{3, 2, 1}));
}

// Phi-3 states <|endoftext|> as its end and ends turns with <|end|>.
TEST(GgufVocab, ControlTokensThatEndATurnAreFoundByTheirSpelling) {
  VocabSpec spec = spm();
  spec.tokens.insert(spec.tokens.end(), {"<|end|>", "<|endoftext|>", "<|user|>", "<|im_end|>"});
  spec.scores.resize(spec.tokens.size());
  spec.token_types.insert(spec.token_types.end(), {3, 3, 3, 1});
  EXPECT_EQ(tokenizer_of(spec).turn_end_ids(), (Ids{2, 10, 11}));
}

TEST(GgufVocab, RefusesWhatContradictsItself) {
  const auto refused = [](VocabSpec spec, ErrorCode code, const char* text) {
    const auto made = Tokenizer::from_vocab(std::move(spec));
    ASSERT_FALSE(made.ok()) << text;
    EXPECT_EQ(made.error().code, code) << made.error().message;
    EXPECT_THAT(made.error().message, HasSubstr(text));
  };
  refused(VocabSpec{.model = "rwkv", .tokens = {"a"}}, ErrorCode::kUnsupported, "rwkv");
  refused(VocabSpec{.model = "gpt2", .pre = "new-pre", .tokens = {"a"}}, ErrorCode::kUnsupported,
          "new-pre");
  refused(VocabSpec{.model = "gpt2"}, ErrorCode::kInvalidArgument, "0 tokens");
  VocabSpec spec = spm();
  spec.scores.pop_back();
  refused(spec, ErrorCode::kInvalidArgument, "9 scores for 10 tokens");
  spec = spm();
  spec.token_types.pop_back();
  refused(spec, ErrorCode::kInvalidArgument, "9 token types");
  spec = spm();
  spec.scores[4] = std::numeric_limits<float>::quiet_NaN();
  refused(spec, ErrorCode::kInvalidArgument, "finite");
  spec = spm();
  spec.tokens[6] = "a";
  refused(spec, ErrorCode::kInvalidArgument, "tokens 5 and 6");
  spec = spm();
  spec.tokens[6] = "\xFF";
  refused(spec, ErrorCode::kInvalidArgument, "UTF-8");
  spec = spm();
  spec.eos = 10;
  refused(spec, ErrorCode::kInvalidArgument, "id 10");
  spec = spm();
  spec.scores.clear();
  refused(spec, ErrorCode::kInvalidArgument, "scores");
  refused(VocabSpec{.model = "gpt2", .tokens = {"a"}, .merges = {"a"}}, ErrorCode::kInvalidArgument,
          "merge 0");
}

}  // namespace
}  // namespace quire::text
