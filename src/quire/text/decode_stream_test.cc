// After each token a stream has given all that the text of the tokens so far and any later text
// share.
#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/str.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire::text {
namespace {

using base::str_cat;

// Returns a tokenizer of 256 byte tokens, then words.
Tokenizer bytes_and_words(const std::string& decoder) {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    vocab += str_cat("\"<0x", std::string(1, kHex[static_cast<std::size_t>(byte) / 16]),
                     std::string(1, kHex[static_cast<std::size_t>(byte) % 16]), ">\":", byte, ",");
  }
  vocab += R"("\u2581end":256,"\u2581":257,"x</w>":258,"yy":259,"@@":260,"q@":261)";
  auto made =
      Tokenizer::from_json(str_cat(R"({"model":{"type":"BPE","byte_fallback":true,"vocab":{)",
                                   vocab, R"(},"merges":[]},"decoder":)", decoder, "}"),
                           "");
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

const char* const kLlama =
    R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},)"
    R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})";
const char* const kFusedReplace =
    R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},)"
    R"({"type":"Replace","pattern":{"String":"\u2581"},"content":" "},)"
    R"({"type":"Replace","pattern":{"String":"@@ "},"content":""}]})";

std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char byte : text) {
    ids.push_back(static_cast<unsigned char>(byte));
  }
  return ids;
}

TEST(DecodeStream, ACharacterOfByteTokensComesWithItsLastByte) {
  for (const char* decoder : {kLlama, kFusedReplace}) {
    const Tokenizer tokenizer = bytes_and_words(decoder);
    const std::string text = "\u4e00\u5050\U0001F600e\u0301";
    Detokenizer stream(tokenizer);
    std::string streamed;
    for (std::size_t i = 0; i < text.size(); ++i) {
      streamed += stream.push(static_cast<unsigned char>(text[i]));
      EXPECT_EQ(streamed, text.substr(0, valid_utf8_prefix(text.substr(0, i + 1)))) << decoder;
    }
    EXPECT_EQ(stream.flush(), "");
  }
}

TEST(DecodeStream, ACutInsideACharacterKeepsTheOnesBeforeIt) {
  const Tokenizer tokenizer = bytes_and_words(kLlama);
  const std::string text = "\u4e00\u5050";
  const auto ids = bytes_of(text + "\xE6\x82");
  EXPECT_EQ(tokenizer.decode(ids).value(), text + "\uFFFD\uFFFD");
  auto more = bytes_of(text + "\xE6" + "\u4e00");
  more.push_back(256);
  EXPECT_EQ(tokenizer.decode(more).value(), text + "\uFFFD\u4e00 end");
}

TEST(DecodeStream, TheWordBeforeABpeSuffixComesWithItsToken) {
  const Tokenizer tokenizer = bytes_and_words(R"({"type":"BPEDecoder","suffix":"</w>"})");
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(259), "yy");
  EXPECT_EQ(stream.push(258), "x");
  EXPECT_EQ(stream.push(258), " x");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{259, 258, 258}).value(), "yyx x");
}

TEST(DecodeStream, AReplacementBehindAFuseHoldsBackOnlyWhatMayBeReplaced) {
  const Tokenizer tokenizer = bytes_and_words(kFusedReplace);
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(259), "yy");
  EXPECT_EQ(stream.push(261), "q");
  EXPECT_EQ(stream.push(261), "@q");
  EXPECT_EQ(stream.push('@'), "");
  EXPECT_EQ(stream.push(257), "");
  EXPECT_EQ(stream.push(259), "yy");
  EXPECT_EQ(stream.push(260), "");
  EXPECT_EQ(stream.flush(), "@@");
}

TEST(DecodeStream, PiecesJoinToTheTextForRandomTokens) {
  std::mt19937 random(11);
  for (const char* decoder :
       {kLlama, kFusedReplace, R"({"type":"BPEDecoder","suffix":"</w>"})",
        R"({"type":"ByteFallback"})", R"({"type":"WordPiece","prefix":"@"})"}) {
    const Tokenizer tokenizer = bytes_and_words(decoder);
    std::uniform_int_distribution<TokenId> any(180, tokenizer.vocab_size() - 1);
    for (int round = 0; round < 300; ++round) {
      std::vector<TokenId> ids;
      Detokenizer stream(tokenizer);
      std::string streamed;
      for (int i = 0; i < 12; ++i) {
        ids.push_back(any(random));
        streamed += stream.push(ids.back());
        const std::string text = tokenizer.decode(ids).value();
        EXPECT_EQ(valid_utf8_prefix(streamed), streamed.size());
        if (std::string_view(decoder) != kFusedReplace) {
          EXPECT_TRUE(text.starts_with(streamed)) << decoder;
        }
      }
      streamed += stream.flush();
      EXPECT_EQ(streamed, tokenizer.decode(ids).value()) << decoder;
    }
  }
}

}  // namespace
}  // namespace quire::text
