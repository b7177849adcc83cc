// Answers as the tests write them: a text in which special tokens are spelled, split by a tokenizer
// whose other tokens are single bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chat.h"
#include "quire/text/answer/answer_stream.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text::answer {

constexpr int kFirstSpecial = 256;

// Returns a tokenizer of 256 byte tokens and of special tokens behind them.
inline Tokenizer bytes_and_specials(const std::vector<std::string>& specials) {
  std::string vocab;
  for (int byte = 0; byte < kFirstSpecial; ++byte) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    vocab += base::str_cat(byte == 0 ? "" : ",", "\"<0x",
                           std::string(1, kHex[static_cast<std::size_t>(byte) / 16]),
                           std::string(1, kHex[static_cast<std::size_t>(byte) % 16]), ">\":", byte);
  }
  std::string added;
  for (std::size_t i = 0; i < specials.size(); ++i) {
    std::string spelling = specials[i];
    if (const std::size_t quote = spelling.find('"'); quote != std::string::npos) {
      spelling.insert(quote, "\\");
    }
    added +=
        base::str_cat(i == 0 ? "" : ",", R"({"special":true,"content":")", spelling, R"(","id":)",
                      kFirstSpecial + i,
                      R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false})");
  }
  auto made = Tokenizer::from_json(
      base::str_cat(R"({"model":{"type":"BPE","byte_fallback":true,"vocab":{)", vocab,
                    R"(},"merges":[]},"added_tokens":[)", added,
                    R"(],"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},)",
                    R"({"type":"Fuse"}]}})"),
      "");
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

// Appends the parts of a later piece.
inline void join(AnswerParts& sum, AnswerParts more) {
  sum.thinking += more.thinking;
  sum.content += more.content;
  sum.thinking_tokens += more.thinking_tokens;
  std::ranges::move(more.tool_calls, std::back_inserter(sum.tool_calls));
}

// A model's way to answer: the marks in its template, and which tokens are special.
struct Speaker {
  std::string chat_template;
  std::vector<std::string> specials;
  std::string tools;  // JSON of the request's tools

  // Returns the ids of a text. Every special token that it spells becomes one id.
  [[nodiscard]] std::vector<TokenId> ids(std::string_view text) const {
    std::vector<TokenId> out;
    while (!text.empty()) {
      const auto found = std::ranges::find_if(
          specials, [&](const std::string& special) { return text.starts_with(special); });
      const bool is_special = found != specials.end();
      out.push_back(is_special ? kFirstSpecial + static_cast<TokenId>(found - specials.begin())
                               : static_cast<unsigned char>(text.front()));
      text.remove_prefix(is_special ? found->size() : 1);
    }
    return out;
  }

  // Splits an answer that comes in pieces of so many tokens as `cut` returns. The engine keeps a
  // text that ends before `stop`, as it does with a stop string.
  template <class Cut>
  [[nodiscard]] AnswerParts split(std::string_view prompt, std::string_view answer, Cut cut,
                                  std::string_view stop = {}) const {
    const Tokenizer tokenizer = bytes_and_specials(specials);
    AnswerStream stream(tokenizer, find_style(chat_template, tokenizer), ids(prompt),
                        ToolSchemas::read(tools).value());
    const std::vector<TokenId> all = ids(answer);
    std::string whole = tokenizer.decode(all).value();
    if (const std::size_t at = stop.empty() ? std::string::npos : whole.find(stop);
        at != std::string::npos) {
      whole.resize(at);
    }
    Detokenizer detokenizer(tokenizer);
    std::size_t given = 0;
    std::size_t decoded = 0;
    AnswerParts sum;
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t count = std::min<std::size_t>(cut(), all.size() - begin);
      const auto piece = std::span(all).subspan(begin, count);
      for (const TokenId id : piece) {
        decoded += detokenizer.push(id).size();
      }
      const std::size_t known = std::min(decoded, whole.size());
      join(sum,
           stream.take(std::string_view(whole).substr(given, known - given), piece, false).value());
      given = known;
      begin += count;
    }
    join(sum, stream.take(std::string_view(whole).substr(given), {}, true).value());
    return sum;
  }
};

}  // namespace quire::text::answer
