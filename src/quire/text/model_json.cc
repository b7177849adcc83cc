#include "quire/text/model_json.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/bpe_model.h"
#include "quire/text/json_section.h"
#include "quire/text/unigram_model.h"
#include "quire/text/vocabulary.h"
#include "quire/text/word_model.h"
#include "quire/types.h"

namespace quire::text {
namespace {

// Ids may have gaps, but a small file must not make a large table.
constexpr std::int64_t kFreeIds = 65536;
constexpr std::int64_t kIdsPerToken = 4;

// Reads the vocabulary as a JSON object of token to id.
Status read_vocab(base::JsonView model, Vocabulary& vocabulary) {
  const base::JsonView tokens = model.find("vocab");
  if (!tokens.is_object()) {
    return {ErrorCode::kInvalidArgument, "model: vocab must be an object"};
  }
  if (tokens.size() > kMaxVocabulary) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("model: ", tokens.size(), " tokens; at most ", kMaxVocabulary)};
  }
  const std::int64_t end = kFreeIds + kIdsPerToken * static_cast<std::int64_t>(tokens.size());
  for (const auto [token, value] : tokens.members()) {
    const std::int64_t id = value.exact<std::int64_t>().value_or(-1);
    if (id < 0 || id >= end) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("model: id ", base::write_json(value), " of token ",
                            base::quoted(token), " is outside 0 to ", end - 1)};
    }
    const auto token_id = static_cast<TokenId>(id);
    if (vocabulary.has(token_id)) {
      return {ErrorCode::kInvalidArgument, base::str_cat("model: id ", token_id, " is given to ",
                                                         base::quoted(vocabulary.token(token_id)),
                                                         " and to ", base::quoted(token))};
    }
    vocabulary.add(token, token_id);
  }
  return {};
}

// Reads "left right", or ["left", "right"].
Result<BpeMerge> read_merge(base::JsonView value, std::size_t rank) {
  BpeMerge merge = {.rank = static_cast<std::uint32_t>(rank)};
  if (value.is_string()) {
    const std::string_view text = value.as_string();
    const std::size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      merge.left = text.substr(0, space);
      merge.right = text.substr(space + 1);
      return merge;
    }
  } else if (value.is_array() && value.size() == 2 && value[0].is_string() &&
             value[1].is_string()) {
    merge.left = std::string(value[0].as_string());
    merge.right = std::string(value[1].as_string());
    return merge;
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("model: merge ", rank, " must be two tokens, not ",
                        base::quoted(base::write_json(value), 40))};
}

Result<ModelSource> read_bpe(base::JsonView model, Vocabulary& vocabulary) {
  QUIRE_TRY_STATUS(read_vocab(model, vocabulary));
  QUIRE_TRY(const double dropout, base::get_double(model, "dropout", 0.0));
  if (dropout != 0.0) {
    return {ErrorCode::kUnsupported,
            base::str_cat("model: dropout ", dropout, " is not supported; set it to null")};
  }
  ModelSource::Bpe bpe;
  QUIRE_TRY(bpe.options.byte_fallback, base::get_bool(model, "byte_fallback", false));
  QUIRE_TRY(bpe.options.ignore_merges, base::get_bool(model, "ignore_merges", false));
  QUIRE_TRY(bpe.options.fuse_unk, base::get_bool(model, "fuse_unk", false));
  QUIRE_TRY(bpe.options.continuing_subword_prefix,
            base::get_string(model, "continuing_subword_prefix", ""));
  QUIRE_TRY(bpe.options.end_of_word_suffix, base::get_string(model, "end_of_word_suffix", ""));
  QUIRE_TRY(const std::string unk, base::get_string(model, "unk_token", ""));
  bpe.options.unk = vocabulary.find(unk);
  QUIRE_TRY(const base::JsonView merges, require_array(model, "merges"));
  bpe.merges.reserve(merges.size());
  for (const base::JsonView value : merges.elements()) {
    if (value.is_string() && value.as_string().starts_with("#version")) {
      continue;  // a line of the file merges.txt that old tools kept
    }
    QUIRE_TRY(BpeMerge merge, read_merge(value, bpe.merges.size()));
    bpe.merges.push_back(std::move(merge));
  }
  return ModelSource{.what = std::move(bpe)};
}

Result<ModelSource> read_unigram(base::JsonView model, Vocabulary& vocabulary) {
  QUIRE_TRY(const base::JsonView pieces, require_array(model, "vocab"));
  if (pieces.size() > kMaxVocabulary) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("model: ", pieces.size(), " tokens; at most ", kMaxVocabulary)};
  }
  ModelSource::Unigram unigram;
  for (const base::JsonView piece : pieces.elements()) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      return {ErrorCode::kInvalidArgument, base::str_cat("model: piece ", unigram.scores.size(),
                                                         " must be a token and a score")};
    }
    const std::string_view token = piece[0].as_string();
    if (vocabulary.find(token)) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("model: token ", base::quoted(token), " is there twice")};
    }
    vocabulary.add(token, static_cast<TokenId>(unigram.scores.size()));
    unigram.scores.push_back(piece[1].as_double());
  }
  QUIRE_TRY(const std::int64_t unk, base::get_int(model, "unk_id", -1));
  if (unk < 0 || unk >= vocabulary.end_id()) {
    return {ErrorCode::kUnsupported, base::str_cat("model: a Unigram model needs an unk_id below ",
                                                   vocabulary.end_id(), ", not ", unk)};
  }
  unigram.options.unk = static_cast<TokenId>(unk);
  QUIRE_TRY(unigram.options.byte_fallback, base::get_bool(model, "byte_fallback", false));
  return ModelSource{.what = std::move(unigram)};
}

Result<TokenId> require_unk(base::JsonView model, const Vocabulary& vocabulary,
                            std::string_view fallback) {
  QUIRE_TRY(const std::string unk, base::get_string(model, "unk_token", fallback));
  const auto id = vocabulary.find(unk);
  if (!id) {
    return {ErrorCode::kUnsupported,
            base::str_cat("model: unk_token ", base::quoted(unk), " is not in the vocabulary")};
  }
  return *id;
}

Result<ModelSource> read_word_piece(base::JsonView model, Vocabulary& vocabulary) {
  QUIRE_TRY_STATUS(read_vocab(model, vocabulary));
  WordPieceOptions options;
  QUIRE_TRY(options.unk, require_unk(model, vocabulary, "[UNK]"));
  QUIRE_TRY(options.continuing_prefix, base::get_string(model, "continuing_subword_prefix", "##"));
  QUIRE_TRY(const std::int64_t max_chars, base::get_int(model, "max_input_chars_per_word", 100));
  options.max_chars_per_word = max_chars > 0 ? static_cast<std::size_t>(max_chars) : 0;
  return ModelSource{.what = options};
}

Result<ModelSource> read_word_level(base::JsonView model, Vocabulary& vocabulary) {
  QUIRE_TRY_STATUS(read_vocab(model, vocabulary));
  QUIRE_TRY(const TokenId unk, require_unk(model, vocabulary, "<unk>"));
  return ModelSource{.what = ModelSource::WordLevel{.unk = unk}};
}

// Guesses the type in files from before it was written down.
std::string guess_type(base::JsonView model) {
  if (model.find("vocab").is_array()) {
    return "Unigram";
  }
  if (!model.find("merges").is_null()) {
    return "BPE";
  }
  return model.find("max_input_chars_per_word").is_null() ? "WordLevel" : "WordPiece";
}

}  // namespace

bool ModelSource::takes_bytes() const {
  const Bpe* bpe = std::get_if<Bpe>(&what);
  return bpe != nullptr && !bpe->options.byte_fallback &&
         bpe->options.continuing_subword_prefix.empty() && bpe->options.end_of_word_suffix.empty();
}

Result<ModelSource> read_model(base::JsonView model, Vocabulary& vocabulary) {
  if (!model.is_object()) {
    return {ErrorCode::kInvalidArgument, "tokenizer.json: model must be an object"};
  }
  QUIRE_TRY(const std::string type, base::get_string(model, "type", guess_type(model)));
  if (type == "BPE") {
    return read_bpe(model, vocabulary);
  }
  if (type == "Unigram") {
    return read_unigram(model, vocabulary);
  }
  if (type == "WordPiece") {
    return read_word_piece(model, vocabulary);
  }
  if (type == "WordLevel") {
    return read_word_level(model, vocabulary);
  }
  return unknown_type("model", type);
}

Result<BuiltModel> build_model(ModelSource source, const Vocabulary& vocabulary, bool byte_level) {
  BuiltModel built;
  if (auto* bpe = std::get_if<ModelSource::Bpe>(&source.what)) {
    bpe->options.byte_level = byte_level;
    built.unk = bpe->options.unk;
    QUIRE_TRY(auto model, BpeModel::create(vocabulary, bpe->options, bpe->merges, false));
    built.cuts_at_metaspace = model->never_merges_into_metaspace();
    built.model = std::move(model);
  } else if (auto* unigram = std::get_if<ModelSource::Unigram>(&source.what)) {
    built.unk = unigram->options.unk;
    const double min_score = *std::min_element(unigram->scores.begin(), unigram->scores.end());
    unigram->scores.resize(static_cast<std::size_t>(vocabulary.end_id()),
                           -std::numeric_limits<double>::infinity());  // tokens added later
    built.model = std::make_unique<UnigramModel>(vocabulary, std::move(unigram->scores), min_score,
                                                 unigram->options);
  } else if (const auto* words = std::get_if<WordPieceOptions>(&source.what)) {
    built.unk = words->unk;
    built.model = std::make_unique<WordPieceModel>(vocabulary, *words);
  } else {
    const TokenId unk = std::get<ModelSource::WordLevel>(source.what).unk;
    built.unk = unk;
    built.model = std::make_unique<WordLevelModel>(vocabulary, unk);
  }
  return built;
}

}  // namespace quire::text
