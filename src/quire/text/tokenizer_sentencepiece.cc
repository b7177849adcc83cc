// Tokenizer::from_sentencepiece: a tokenizer.model through libsentencepiece, which normalizes and
// segments; special tokens and decoding are ours. Text between special tokens is encoded on its
// own, and BOS is added unless tokenizer_config.json says otherwise, as in transformers'
// LlamaTokenizer.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/mapped_file.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/added_tokens.h"
#include "quire/text/model.h"
#include "quire/text/post_processor.h"
#include "quire/text/spelling_decoder.h"
#include "quire/text/tokenizer.h"
#include "quire/text/tokenizer_config.h"
#include "quire/text/tokenizer_pipeline.h"
#include "quire/text/utf8.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr TokenId kMaxAddedId = 1 << 24;

class SentencePieceModel final : public Model {
 public:
  explicit SentencePieceModel(std::unique_ptr<const SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {}
  void tokenize(std::string_view piece, ModelScratch& /*scratch*/,
                std::vector<TokenId>& out) const override {
    std::vector<int> ids;
    QUIRE_CHECK(processor_->Encode(piece, &ids).ok(), "sentencepiece refused well-formed text");
    out.insert(out.end(), ids.begin(), ids.end());
  }

 private:
  std::unique_ptr<const SentencePieceProcessor> processor_;
};

// Finds out what becomes of leading spaces. The library does not tell its settings; decoding a
// piece that starts with a space does.
decode::LeadingSpace leading_space(const SentencePieceProcessor& processor,
                                   const Vocabulary& vocabulary) {
  using Drop = decode::LeadingSpace::Drop;
  if (const auto space = vocabulary.find(kMetaspace)) {
    const std::string text = processor.DecodeIds(std::vector<int>{*space, *space});
    return {.drop = text.empty() ? Drop::kEach : text == " " ? Drop::kOnce : Drop::kNever};
  }
  for (TokenId id = 0; id < processor.GetPieceSize(); ++id) {
    if (processor.IdToPiece(id).starts_with(kMetaspace)) {
      const bool keeps = processor.DecodeIds(std::vector<int>{id}).starts_with(' ');
      return {.drop = keeps ? Drop::kNever : Drop::kOnce};
    }
  }
  return {};
}

// Adds the model's pieces; control and unknown pieces are returned as special added tokens. The
// library decodes control pieces to nothing but shows unknown ones, so those are skipped only if
// the tokenizer_config.json calls them special.
Result<std::vector<AddedToken>> add_pieces(const SentencePieceProcessor& processor,
                                           Vocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (TokenId id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    if (valid_utf8_prefix(piece) != piece.size() || vocabulary.find(piece)) {
      return {ErrorCode::kCorrupt, base::str_cat("tokenizer.model: piece ", id, " ",
                                                 base::quoted(piece), " is not UTF-8 or twice")};
    }
    vocabulary.add(piece, id);
    if (processor.IsControl(id) || processor.IsUnknown(id)) {
      added.push_back({.content = piece, .id = id, .special = true});
    }
    if (processor.IsControl(id)) {
      vocabulary.mark_special(id);
    }
  }
  return added;
}

// Adds a special token that states no id: it has one, or takes the next.
void add_special(AddedToken token, Vocabulary& vocabulary, std::vector<AddedToken>& added) {
  if (token.content.empty()) {
    return;
  }
  const auto known = vocabulary.find(token.content);
  token.id = known.value_or(vocabulary.end_id());
  token.normalized = false;
  if (!known) {
    vocabulary.add(token.content, token.id);
  }
  vocabulary.mark_special(token.id);
  const auto there = std::ranges::find(added, token.id, &AddedToken::id);
  if (there != added.end()) {
    there->special = true;
  } else {
    added.push_back(std::move(token));
  }
}

Status add_from_config(const TokenizerConfig& config, Vocabulary& vocabulary,
                       std::vector<AddedToken>& added) {
  for (const AddedToken& token : config.added_tokens) {
    const auto known = vocabulary.find(token.content);
    if ((known && *known != token.id) || (!known && vocabulary.has(token.id)) ||
        token.id > kMaxAddedId) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("added_tokens_decoder: token ", base::quoted(token.content),
                            " cannot have id ", token.id)};
    }
    if (!known) {
      vocabulary.add(token.content, token.id);
    }
    if (token.special) {
      vocabulary.mark_special(token.id);
    }
    std::erase_if(added, [&](const AddedToken& other) { return other.id == token.id; });
    added.push_back(token);
    added.back().normalized = false;  // the model's normalization is not applied to added tokens
  }
  for (const NamedSpecial& named : config.named) {
    add_special(named.token, vocabulary, added);
  }
  for (const AddedToken& token : config.extra) {
    add_special(token, vocabulary, added);
  }
  return {};
}

SpecialIds special_ids(const TokenizerConfig& config, const SentencePieceProcessor& processor,
                       const Vocabulary& vocabulary) {
  const auto id_of = [&](std::string_view name, int own) {
    const std::string* token = config.find(name);
    const auto named = token != nullptr ? vocabulary.find(*token) : std::nullopt;
    return named || own < 0 ? named : std::optional<TokenId>(own);
  };
  return {.bos = id_of("bos_token", processor.bos_id()),
          .eos = id_of("eos_token", processor.eos_id()),
          .pad = id_of("pad_token", processor.pad_id()),
          .unk = id_of("unk_token", processor.unk_id())};
}

}  // namespace

Result<Tokenizer> Tokenizer::from_sentencepiece(const std::string& path,
                                                std::string_view config_json,
                                                std::string_view special_tokens_map_json,
                                                std::string_view added_tokens_json) {
  QUIRE_TRY(const std::string bytes, base::read_file(path));
  QUIRE_TRY(TokenizerConfig config, parse_tokenizer_config(config_json, special_tokens_map_json));
  QUIRE_TRY_STATUS(add_tokens_of_file(added_tokens_json, config));
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(bytes);
  if (!status.ok() || processor->GetPieceSize() == 0) {
    return {ErrorCode::kCorrupt,
            base::str_cat(base::quoted(path, 200),
                          " is not a sentencepiece model: ", status.ToString())};
  }
  auto pipeline = std::make_unique<TokenizerPipeline>();
  QUIRE_TRY(std::vector<AddedToken> added, add_pieces(*processor, pipeline->vocabulary));
  QUIRE_TRY_STATUS(add_from_config(config, pipeline->vocabulary, added));
  QUIRE_TRY_STATUS(pipeline->set_added_tokens(std::move(added)));
  pipeline->split_special_tokens = config.split_special_tokens;
  pipeline->ids = special_ids(config, *processor, pipeline->vocabulary);
  pipeline->name_tokens();
  pipeline->decoder.emplace_back(leading_space(*processor, pipeline->vocabulary));
  pipeline->decoder.emplace_back(decode::ByteFallback{});
  pipeline->decoded_as[processor->unk_id()] =
      processor->DecodeIds(std::vector<int>{processor->unk_id()});
  PostTemplate around;
  if (config.add_bos_token.value_or(true) && pipeline->ids.bos) {
    around.emplace_back(pipeline->ids.bos);
  }
  around.emplace_back(std::nullopt);
  if (config.add_eos_token.value_or(false) && pipeline->ids.eos) {
    around.emplace_back(pipeline->ids.eos);
  }
  pipeline->post_processor = PostProcessor(std::move(around));
  pipeline->model = std::make_unique<SentencePieceModel>(std::move(processor));
  base::FieldHasher hasher;
  hasher.add("sentencepiece").add(bytes).add(config_json);
  if (!special_tokens_map_json.empty() || !added_tokens_json.empty()) {
    hasher.add(special_tokens_map_json).add(added_tokens_json);
  }
  pipeline->fingerprint = base::to_hex(hasher.finish());
  return Tokenizer(std::move(pipeline));
}

}  // namespace quire::text
