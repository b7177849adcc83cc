// tokenizer.model files against the sentencepiece library
// (tests/golden/text/make_sentencepiece.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"

namespace quire::text {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

const fs::path kSentencepieceFolder = QUIRE_SOURCE_DIR "/tests/golden/text/sentencepiece";

class SentencePiece : public testing::TestWithParam<std::string> {};

TEST_P(SentencePiece, GivesTheIdsAndTextOfTheLibrary) {
  const auto made =
      Tokenizer::from_sentencepiece(kSentencepieceFolder / (GetParam() + ".model"), "");
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Tokenizer& tokenizer = made.value();
  const json::value all = json::parse(base::read_file(kSentencepieceFolder / "cases.json").value());
  for (const json::value& row : all.at(GetParam()).as_array()) {
    const auto ids = json::value_to<std::vector<TokenId>>(row.at(1));
    if (!row.at(0).is_null()) {
      const std::string text(row.at(0).as_string());
      EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false}).value(), ids) << text;
    }
    const std::string expected(row.at(2).as_string());
    EXPECT_EQ(tokenizer.decode(ids).value(), expected) << json::serialize(row);
    Detokenizer stream(tokenizer);
    std::string streamed;
    for (const TokenId id : ids) {
      streamed += stream.push(id);
    }
    EXPECT_EQ(streamed.append(stream.flush()), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePiece, testing::Values("bpe", "unigram", "no_prefix"));

TEST(SentencePieceFile, ParsesSpecialTokensAndAddsBos) {
  const auto made = Tokenizer::from_sentencepiece(kSentencepieceFolder / "bpe.model", R"({
      "add_eos_token": true, "pad_token": "<pad>",
      "added_tokens_decoder": {"430": {"content": "<pad>", "special": true}}})");
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Tokenizer& tokenizer = made.value();
  const auto ids = tokenizer.encode("</s><pad>").value();
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 2, 430, 2}));
  EXPECT_EQ(tokenizer.pad_token_id(), 430);
  EXPECT_EQ(tokenizer.decode(ids).value(), "");
  for (const TokenId id :
       tokenizer.encode("</s>", {.add_special_tokens = false, .parse_special = false}).value()) {
    EXPECT_FALSE(tokenizer.is_special(id));
  }
}

// Oracle: transformers, which turns added_tokens.json into an added_tokens_decoder and gives
// special tokens without an id the next ones.
TEST(SentencePieceFile, AddsTheTokensOfOtherFiles) {
  const auto made = Tokenizer::from_sentencepiece(
      kSentencepieceFolder / "bpe.model", R"({"add_bos_token": false})",
      R"({"eos_token": "<|im_end|>", "pad_token": {"content": "<pad>", "lstrip": false},
          "additional_special_tokens": ["<|im_start|>", "<|new|>"]})",
      R"({"<|im_start|>": 430, "<|im_end|>": 431, "<word>": 432})");
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->encode("<|im_start|><word><|im_end|><pad><|new|>").value(),
            (std::vector<TokenId>{430, 432, 431, 433, 434}));
  EXPECT_EQ(made->eos_token_id(), 431);
  EXPECT_EQ(made->pad_token_id(), 433);
  for (const TokenId id : {430, 431, 433, 434}) {
    EXPECT_TRUE(made->is_special(id)) << id;
  }
  EXPECT_FALSE(made->is_special(432)) << "added, but nobody calls it special";
  EXPECT_EQ(made->decode(std::vector<TokenId>{430, 432, 431}).value(), "<word>");
}

TEST(SentencePieceFile, RefusesAnAddedTokenWithoutAnId) {
  const auto made =
      Tokenizer::from_sentencepiece(kSentencepieceFolder / "bpe.model", "", "", R"({"<x>": "y"})");
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, testing::HasSubstr("<x>"));
}

TEST(SentencePieceFile, RefusesWhatIsNoModel) {
  const fs::path path = fs::temp_directory_path() / "quire_not_a.model";
  for (const std::string bytes : {"", "not a model", "\n\xFF\xFF\xFF\x7F"}) {
    std::ofstream(path, std::ios::binary) << bytes;
    const auto made = Tokenizer::from_sentencepiece(path, "");
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, ErrorCode::kCorrupt);
  }
  fs::remove(path);
  EXPECT_EQ(Tokenizer::from_sentencepiece("/nonexistent", "").error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace quire::text
