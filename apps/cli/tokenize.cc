// quire tokenize: the ids and pieces of a text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "generate.h"
#include "hub.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"
#include "utf8.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  bool no_special_tokens = false;
  Format format = Format::kText;
};

// Text to which bytes of half a character decode.
constexpr std::string_view kIncomplete = "\uFFFD";

std::string_view without_incomplete(std::string_view text) {
  while (text.ends_with(kIncomplete)) {
    text.remove_suffix(kIncomplete.size());
  }
  return text;
}

// Returns the text that each token adds to those before it. A character of several tokens stands at
// its last one, the others have "".
Result<std::vector<std::string>> texts_of(const Tokenizer& tokenizer,
                                          const std::vector<TokenId>& ids) {
  constexpr std::size_t kBefore = 8;  // tokens that can matter for the text of the next
  std::vector<std::string> texts;
  texts.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t start = i - std::min(i, kBefore);
    const std::span<const TokenId> with = std::span(ids).subspan(start, i + 1 - start);
    QUIRE_TRY(const std::string before, tokenizer.decode(with.first(with.size() - 1), false));
    QUIRE_TRY(const std::string text, tokenizer.decode(with, false));
    const bool last = i + 1 == ids.size();
    const std::string_view whole = last ? std::string_view(text) : without_incomplete(text);
    const std::size_t known = without_incomplete(before).size();
    texts.emplace_back(whole.substr(std::min(known, whole.size())));
  }
  return texts;
}

Status tokenize(const TokenizeOptions& options) {
  std::string text = options.text.value_or("");
  if (!options.text.has_value()) {
    QUIRE_TRY(text, read_strict_text("-"));
  }
  QUIRE_TRY(const std::string model, find_model(options.model));
  QUIRE_TRY(const Tokenizer tokenizer, Tokenizer::open(model));
  QUIRE_TRY(const std::vector<TokenId> ids, tokenizer.encode(text, !options.no_special_tokens));
  QUIRE_TRY(const std::vector<std::string> texts, texts_of(tokenizer, ids));
  json::array pieces;
  std::string table;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    QUIRE_TRY(const std::string piece, tokenizer.id_to_token(ids[i]));
    pieces.emplace_back(piece);
    table += std::to_string(ids[i]) + '\t' + json::serialize(pieces.back()) + '\t' +
             json::serialize(json::value(texts[i])) + '\n';
  }
  if (options.text.has_value()) {
    note_unread_text("TEXT");
  }
  if (options.format == Format::kText) {
    QUIRE_TRY_STATUS(print(table));
    note(std::to_string(ids.size()) + (ids.size() == 1 ? " token" : " tokens"));
    return {};
  }
  return print_json({{"num_tokens", ids.size()},
                     {"token_ids", json::value_from(ids)},
                     {"pieces", std::move(pieces)},
                     {"texts", json::value_from(texts)}});
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Show ids, spellings and texts of the tokens of a text");
  auto options = std::make_shared<TokenizeOptions>();
  add_model(*command, options->model);
  command->add_option("TEXT", options->text, "without it stdin is read, as it is")
      ->check(refuse_no_utf8);
  command->add_flag("--no-special-tokens", options->no_special_tokens,
                    "leave out the tokens that the model adds around a text");
  add_format(*command, options->format);
  command->callback([options, &action] {
    action = [options] {
      const Status done = tokenize(*options);
      return done.ok() ? kExitOk : fail(done.error());
    };
  });
}

}  // namespace quire::cli
