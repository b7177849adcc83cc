// quire tokenize: the ids and pieces of a text.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "generate.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  bool no_special_tokens = false;
  Format format = Format::kText;
};

Status tokenize(const TokenizeOptions& options) {
  std::string text = options.text.value_or("");
  if (!options.text.has_value()) {
    QUIRE_TRY(text, read_text("-"));
  }
  QUIRE_TRY(const Tokenizer tokenizer, Tokenizer::open(options.model));
  QUIRE_TRY(const std::vector<TokenId> ids, tokenizer.encode(text, !options.no_special_tokens));
  json::array pieces;
  std::string table;
  for (const TokenId id : ids) {
    QUIRE_TRY(const std::string piece, tokenizer.id_to_token(id));
    pieces.emplace_back(piece);
    table += std::to_string(id) + '\t' + json::serialize(pieces.back()) + '\n';
  }
  if (options.format == Format::kText) {
    return print(table);
  }
  return print_json({{"num_tokens", ids.size()},
                     {"token_ids", json::value_from(ids)},
                     {"pieces", std::move(pieces)}});
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("tokenize", "Show the token ids and pieces of a text");
  auto options = std::make_shared<TokenizeOptions>();
  add_model(*command, options->model);
  command->add_option("TEXT", options->text, "without it stdin is read, as it is");
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
