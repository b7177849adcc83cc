// Files from strangers: every refusal is typed and names the thing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "quire/base/mapped_file.h"
#include "quire/base/str.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"

namespace quire::text {
namespace {

using testing::HasSubstr;

const std::string kVocab = R"({"a":0,"b":1,"ab":2,"<s>":3})";

std::string bpe(const std::string& extra, const std::string& vocab = kVocab) {
  return R"({"model":{"type":"BPE","vocab":)" + vocab + R"(,"merges":["a b"]})" + extra + "}";
}

void expect_refused(const std::string& json, ErrorCode code, const std::string& text) {
  const auto made = Tokenizer::from_json(json, "");
  ASSERT_FALSE(made.ok()) << json;
  EXPECT_EQ(made.error().code, code) << made.error().message;
  EXPECT_THAT(made.error().message, HasSubstr(text));
}

TEST(TokenizerJson, LoadsTheSmallestModel) {
  const auto made = Tokenizer::from_json(bpe(""), "");
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made.value().encode("abba").value(), (std::vector<TokenId>{2, 1, 0}));
  EXPECT_EQ(made.value().vocab_size(), 4);
}

TEST(TokenizerJson, RefusesWhatIsNotAModel) {
  expect_refused("", ErrorCode::kInvalidArgument, "tokenizer.json");
  expect_refused("[]", ErrorCode::kInvalidArgument, "must be an object");
  expect_refused("{}", ErrorCode::kInvalidArgument, "model");
  expect_refused(R"({"model":{"type":"BPE"}})", ErrorCode::kInvalidArgument, "vocab");
  expect_refused(R"({"model":{"type":"BPE","vocab":{}}})", ErrorCode::kInvalidArgument, "merges");
  expect_refused(R"({"model":{"type":"Quantum","vocab":{}}})", ErrorCode::kUnsupported, "Quantum");
}

TEST(TokenizerJson, RefusesBadIds) {
  expect_refused(bpe("", R"({"a":-1})"), ErrorCode::kInvalidArgument, "-1");
  expect_refused(bpe("", R"({"a":2000000000})"), ErrorCode::kInvalidArgument, "2000000000");
  expect_refused(bpe("", R"({"a":99999999999999999999})"), ErrorCode::kInvalidArgument, "a");
  expect_refused(bpe("", R"({"a":1.5})"), ErrorCode::kInvalidArgument, "1.5");
  expect_refused(bpe("", R"({"a":0,"b":0})"), ErrorCode::kInvalidArgument, "given to");
}

TEST(TokenizerJson, RefusesMergesOfUnknownTokens) {
  expect_refused(bpe("", R"({"a":0,"b":1})"), ErrorCode::kInvalidArgument, "\"ab\"");
  for (const char* merge : {R"("a b c")", R"("ab")", R"(["a"])", R"(["a","b","c"])", "7"}) {
    expect_refused(
        std::string(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[)") + merge + "]}}",
        ErrorCode::kInvalidArgument, "merge 0");
  }
}

TEST(TokenizerJson, RefusesWhatWouldChangeIdsSilently) {
  expect_refused(R"({"model":{"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]}})",
                 ErrorCode::kUnsupported, "dropout");
  expect_refused(R"({"model":{"type":"Unigram","vocab":[["a",-1.0]]}})", ErrorCode::kUnsupported,
                 "unk_id");
  expect_refused(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["a",-1],["a",-2]]}})",
                 ErrorCode::kInvalidArgument, "twice");
  expect_refused(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})", ErrorCode::kUnsupported,
                 "[UNK]");
  expect_refused(bpe(R"(,"normalizer":{"type":"Rot13"})"), ErrorCode::kUnsupported, "Rot13");
  expect_refused(bpe(R"(,"pre_tokenizer":{"type":"Odd"})"), ErrorCode::kUnsupported, "Odd");
  expect_refused(bpe(R"(,"post_processor":{"type":"Odd"})"), ErrorCode::kUnsupported, "Odd");
  expect_refused(bpe(R"(,"decoder":{"type":"Odd"})"), ErrorCode::kUnsupported, "Odd");
  expect_refused(
      bpe(R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"),
      ErrorCode::kInvalidArgument, "regex");
  expect_refused(
      bpe(R"(,"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Gone"})"),
      ErrorCode::kUnsupported, "Gone");
  expect_refused(bpe(R"(,"post_processor":{"type":"BertProcessing","sep":["a",9],"cls":["a",0]})"),
                 ErrorCode::kInvalidArgument, "9");
}

TEST(TokenizerJson, RefusesContradictingAddedTokens) {
  expect_refused(bpe(R"(,"added_tokens":[{"id":9,"content":"<x>"}])"), ErrorCode::kInvalidArgument,
                 "states id 9");
  expect_refused(bpe(R"(,"added_tokens":[{"id":-4,"content":"<x>"}])"), ErrorCode::kInvalidArgument,
                 "-4");
  expect_refused(bpe(R"(,"added_tokens":[{"id":2,"content":"a"}])"), ErrorCode::kInvalidArgument,
                 "gives it 0");
  expect_refused(bpe(R"(,"added_tokens":[{"id":4,"content":")" + std::string(5000, 'x') + "\"}]"),
                 ErrorCode::kInvalidArgument, "5000");
}

TEST(TokenizerJson, RefusesDeepNesting) {
  std::string deep = R"({"type":"NFC"})";
  for (int i = 0; i < 200; ++i) {
    deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  }
  expect_refused(bpe(",\"normalizer\":" + deep), ErrorCode::kInvalidArgument, "tokenizer.json");
}

TEST(TokenizerJson, RefusesABrokenCharsmap) {
  for (const char* blob : {"", "AA", "AAAAAA==", "/////wAA", "!"}) {
    expect_refused(
        bpe(std::string(R"(,"normalizer":{"type":"Precompiled","precompiled_charsmap":")") + blob +
            "\"}"),
        ErrorCode::kInvalidArgument, "precompiled_charsmap");
  }
}

TEST(TokenizerJson, RefusesEveryTruncationOfAFile) {
  const auto golden =
      base::read_file(QUIRE_SOURCE_DIR "/tests/golden/text/tokenizers/word_level.json");
  ASSERT_TRUE(golden.ok());
  const std::string whole = golden.value().substr(golden.value().find(R"({"version")"));
  for (std::size_t length = 0; length < 2000; length += 7) {
    EXPECT_FALSE(Tokenizer::from_json(whole.substr(0, length), "").ok());
  }
}

TEST(TokenizerConfig, RefusesWhatIsNotAConfig) {
  for (const char* config : {"[", "[]", R"({"bos_token":7})", R"({"added_tokens_decoder":[]})",
                             R"({"added_tokens_decoder":{"x":{"content":"y"}}})",
                             R"({"added_tokens_decoder":{"-1":{"content":"y"}}})"}) {
    const auto made = Tokenizer::from_json(bpe(""), config);
    ASSERT_FALSE(made.ok()) << config;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(TokenizerConfig, NamesTokensAndAddsThem) {
  const auto made = Tokenizer::from_json(bpe(""), R"({
      "bos_token": {"content": "<s>"}, "eos_token": "<e>", "pad_token": null,
      "added_tokens_decoder": {"4": {"content": "<e>", "special": true}}})");
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made.value().bos_token_id(), 3);
  EXPECT_EQ(made.value().eos_token_id(), 4);
  EXPECT_FALSE(made.value().pad_token_id().has_value());
  EXPECT_TRUE(made.value().is_special(4));
  EXPECT_EQ(made.value().encode("a<e>b").value(), (std::vector<TokenId>{0, 4, 1}));
}

// transformers 5 does so; checked with it.
TEST(TokenizerConfig, TokensThatOnlyTheConfigNamesAreSpecialUnderTheirIdOrTheNext) {
  const auto made = Tokenizer::from_json(bpe(""), R"({
      "eos_token": "b", "pad_token": "<p>", "image_token": "<i>", "unk_token": "<s>",
      "additional_special_tokens": ["<x>", {"content": "<y>", "lstrip": true}]})");
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Tokenizer& tokenizer = made.value();
  EXPECT_EQ(tokenizer.eos_token_id(), 1);
  EXPECT_EQ(tokenizer.encode("a<p>b<i>a <y><x>").value(),
            (std::vector<TokenId>{0, 4, 1, 5, 0, 7, 6}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{0, 1, 4, 5, 6, 7, 0}).value(), "a a");
  EXPECT_EQ(tokenizer.vocab_size(), 8);
  const std::string as_text = "b<p>";
  EXPECT_NE(tokenizer.encode(as_text, {.parse_special = false}).value(),
            tokenizer.encode(as_text).value());
}

TEST(TokenizerConfig, ANameMakesAnAddedTokenSpecialAndAListDoesNot) {
  const std::string added = R"({"id": 4, "content": "<e>", "special": false, "normalized": false})";
  const auto is_special = [&](const char* config) {
    return Tokenizer::from_json(bpe(R"(,"added_tokens":[)" + added + "]"), config)
        .value()
        .is_special(4);
  };
  EXPECT_FALSE(is_special(""));
  EXPECT_TRUE(is_special(R"({"eos_token": "<e>"})"));
  EXPECT_FALSE(is_special(R"({"additional_special_tokens": ["<e>"]})"));
}

TEST(TokenizerConfig, TheMapOfSpecialTokensCountsMoreUnlessTokensAreListedById) {
  const char* map = R"({"eos_token": {"content": "b", "lstrip": false}})";
  const auto eos = [&](const char* config) {
    return Tokenizer::from_json(bpe(""), config, map).value().eos_token_id();
  };
  EXPECT_EQ(eos(""), 1);
  EXPECT_EQ(eos(R"({"eos_token": "a"})"), 1);
  EXPECT_EQ(eos(R"({"eos_token": "a", "added_tokens_decoder": {}})"), 0);
}

TEST(TokenizerConfig, FingerprintsTellWhatOnlyTheConfigAdds) {
  const std::string added = R"(,"added_tokens":[{"id":3,"content":"<s>","special":true}])";
  const auto fingerprint = [&](const char* config) {
    return Tokenizer::from_json(bpe(added), config).value().fingerprint();
  };
  EXPECT_EQ(fingerprint(R"({"eos_token": "<s>"})"), fingerprint(""));
  EXPECT_NE(fingerprint(R"({"eos_token": "b"})"), fingerprint(""));
  EXPECT_NE(fingerprint(R"({"eos_token": "<x>"})"), fingerprint(R"({"eos_token": "<y>"})"));
}

// The model's own table does not hold what is added beside it, as `tokenizers` has it.
TEST(TokenizerJson, AnAddedTokenInsideOfAWordIsUnknownToAModelOfWords) {
  const auto ids = [&](const std::string& model) {
    const auto made = Tokenizer::from_json(
        R"({"model":)" + model + R"(,"pre_tokenizer":{"type":"Digits"},"added_tokens":[
        {"id":2,"content":"foo","single_word":true}]})",
        "");
    EXPECT_TRUE(made.ok()) << made.error().message;
    return made.value().encode("foo2").value();
  };
  EXPECT_EQ(ids(R"({"type":"WordLevel","vocab":{"<unk>":0,"2":1},"unk_token":"<unk>"})"),
            (std::vector<TokenId>{0, 1}));
  EXPECT_EQ(ids(R"({"type":"WordPiece","vocab":{"<unk>":0,"2":1},"unk_token":"<unk>"})"),
            (std::vector<TokenId>{0, 1}));
  EXPECT_EQ(ids(R"({"type":"BPE","vocab":{"<unk>":0,"2":1},"merges":[],"unk_token":"<unk>",
                    "ignore_merges":true,"fuse_unk":true})"),
            (std::vector<TokenId>{0, 1}));
}

TEST(Tokenizer, NamesTheFolderWithoutTokenizer) {
  const auto made = Tokenizer::from_folder("/nonexistent/model");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kIo);
  EXPECT_THAT(made.error().message, HasSubstr("/nonexistent/model"));
}

TEST(Tokenizer, DecodesPaddingToNothingAndRefusesIdsOutsideOfIt) {
  auto made = Tokenizer::from_json(bpe(""), "");
  made->set_padded_size(10);
  for (const TokenId id : {-1, 10, 2000000000}) {
    const auto text = made.value().decode(std::vector<TokenId>{0, id});
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(text.error().message, HasSubstr(std::to_string(id)));
  }
  for (const TokenId id : {4, 9}) {  // as transformers
    EXPECT_EQ(made.value().decode(std::vector<TokenId>{0, id, 0}).value(),
              made.value().decode(std::vector<TokenId>{0, 0}).value());
    Detokenizer stream(made.value());
    EXPECT_EQ(stream.push(id), "");
    EXPECT_FALSE(made.value().id_to_token(id).ok());
    EXPECT_FALSE(made.value().is_special(id));
  }
}

TEST(Tokenizer, LinesOfAVersionAreNoMerges) {
  const auto ids = [](const char* merges) {
    const auto made = Tokenizer::from_json(
        base::str_cat(R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"abb":3},"merges":)",
                      merges, "}}"),
        "");
    EXPECT_TRUE(made.ok()) << made.error().message;
    return made.ok() ? made->encode("abba").value() : std::vector<TokenId>();
  };
  EXPECT_EQ(ids(R"(["#version: 0.2","a b","ab b"])"), ids(R"(["a b","ab b"])"));
  EXPECT_EQ(ids(R"(["a b","#version: 0.2","ab b"])"), (std::vector<TokenId>{3, 0}));
}

TEST(Tokenizer, SplitsSpecialTokensWhereTheConfigSaysSo) {
  const char* const kFile =
      R"({"model":{"type":"BPE","vocab":{"a":0,"<":1,"e":2,">":3},"merges":[]},)"
      R"("added_tokens":[{"id":4,"content":"<e>","special":true,"normalized":false},)"
      R"({"id":5,"content":"ea","special":false,"normalized":false}]})";
  const auto split = Tokenizer::from_json(kFile, R"({"split_special_tokens": true})");
  const auto whole = Tokenizer::from_json(kFile, R"({"split_special_tokens": false})");
  EXPECT_EQ(split->encode("a<e>ea").value(), (std::vector<TokenId>{0, 1, 2, 3, 5}));
  EXPECT_EQ(whole->encode("a<e>ea").value(), (std::vector<TokenId>{0, 4, 5}));
  const TextSpan span{.text = "<e>"};
  EXPECT_EQ(split->encode_spans({&span, 1}).value(), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_NE(split->fingerprint(), whole->fingerprint());
}

// Oracle: tokenizers 0.23.3.
TEST(Tokenizer, ThePieceBehindAnInsertedSpaceStillStandsAtTheBeginning) {
  const auto made = Tokenizer::from_json(
      R"({"model":{"type":"WordLevel","vocab":{"<unk>":0,"\u2581\u6f22":1,"\u6f22":2,"\u5b57":3,
          "\u2581\u5b57":4,"\u2581a":5,"a":6,"bb":7,"\u2581bb":8},"unk_token":"<unk>"},
          "normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true},
          "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
          {"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true}]}})",
      "");
  ASSERT_TRUE(made.ok()) << made.error().message;
  const auto ids = [&](std::string_view text) { return made->encode(text).value(); };
  EXPECT_EQ(ids("\u6f22\u5b57"), (std::vector<TokenId>{1, 3}));
  EXPECT_EQ(ids("a\u6f22 bb"), (std::vector<TokenId>{5, 2, 7}));
  EXPECT_EQ(ids(" \u6f22"), (std::vector<TokenId>{2}));
}

TEST(Tokenizer, SkipsHolesInTheVocabulary) {
  const auto made = Tokenizer::from_json(
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":5},"merges":[]},"decoder":{"type":"Fuse"}})",
      "");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made.value().vocab_size(), 6);
  EXPECT_EQ(made.value().decode(std::vector<TokenId>{0, 3, 5}).value(), "ab");
  EXPECT_EQ(made.value().id_to_token(3).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::text
