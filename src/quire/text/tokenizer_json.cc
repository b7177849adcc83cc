// Tokenizer::from_json: tokenizer.json as Hugging Face `tokenizers` 0.23 reads it, with
// tokenizer_config.json and special_tokens_map.json beside it as transformers reads those.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/added_tokens.h"
#include "quire/text/model_json.h"
#include "quire/text/normalizer.h"
#include "quire/text/post_processor.h"
#include "quire/text/pre_tokenizer.h"
#include "quire/text/spelling_decoder.h"
#include "quire/text/tokenizer.h"
#include "quire/text/tokenizer_config.h"
#include "quire/text/tokenizer_pipeline.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {
namespace {

// Assigns ids as the reference does: a spelling that has one keeps it, others follow the highest
// id. The stated ids must agree with that.
class AddedTokenList {
 public:
  explicit AddedTokenList(Vocabulary& vocabulary)
      : vocabulary_(&vocabulary), model_size_(static_cast<TokenId>(vocabulary.size())) {}

  Status add(AddedToken token, std::string_view where) {
    if (token.content.empty()) {
      return {};
    }
    const auto known = vocabulary_->find(token.content);
    const TokenId id = known ? *known : next_id();
    if (token.id != id) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(where, ": token ", base::quoted(token.content), " states id ", token.id,
                            ", the vocabulary gives it ", id)};
    }
    if (!known && vocabulary_->has(id)) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(where, ": id ", id, " of token ", base::quoted(token.content),
                            " belongs to ", base::quoted(vocabulary_->token(id)))};
    }
    if (!known) {
      vocabulary_->add(token.content, id);
      vocabulary_->mark_added(id);
    }
    max_added_ = std::max(max_added_, id);
    const auto [place, is_new] = index_.emplace(token.content, tokens_.size());
    if (is_new) {
      tokens_.push_back(std::move(token));
    } else {
      token.special = token.special || tokens_[place->second].special;
      tokens_[place->second] = std::move(token);
    }
    return {};
  }

  // Adds a token that states no id: one that is added already stays as it is, but that a name makes
  // it special. Says whether anything changed.
  Result<bool> add_special(AddedToken token, bool is_named) {
    if (const auto place = index_.find(token.content); place != index_.end()) {
      const bool promoted = is_named && !std::exchange(tokens_[place->second].special, true);
      return promoted;
    }
    const auto known = vocabulary_->find(token.content);
    token.id = known ? *known : next_id();
    if (token.content.empty() || (!known && vocabulary_->has(token.id))) {
      return false;  // an id that the model's own table uses is not given away
    }
    QUIRE_TRY_STATUS(add(std::move(token), "tokenizer_config.json"));
    return true;
  }

  std::vector<AddedToken> finish() {
    for (const AddedToken& token : tokens_) {
      if (token.special) {
        vocabulary_->mark_special(token.id);
      }
    }
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] TokenId next_id() const { return std::max(model_size_, max_added_ + 1); }

  Vocabulary* vocabulary_;
  TokenId model_size_;
  TokenId max_added_ = -1;
  std::vector<AddedToken> tokens_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

Status add_from_json(base::JsonView root, AddedTokenList& list) {
  const base::JsonView section = root.find("added_tokens");
  if (section.is_null()) {
    return {};
  }
  if (!section.is_array()) {
    return {ErrorCode::kInvalidArgument, "added_tokens must be an array"};
  }
  for (const base::JsonView value : section.elements()) {
    if (!value.is_object()) {
      return {ErrorCode::kInvalidArgument, "an added token must be an object"};
    }
    QUIRE_TRY(AddedToken token, added_token_from_json(value));
    QUIRE_TRY(const std::int64_t id, base::get_int(value, "id", -1));
    if (id < 0 || id > std::numeric_limits<TokenId>::max()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("added token ", base::quoted(token.content), ": id ", id,
                            " is out of range")};
    }
    token.id = static_cast<TokenId>(id);
    QUIRE_TRY_STATUS(list.add(std::move(token), "added_tokens"));
  }
  return {};
}

// Adds the tokens that transformers adds to tokenizer.json. The hash is of what changes it.
Status add_config_tokens(const TokenizerConfig& config, AddedTokenList& list,
                         base::FieldHasher& hasher) {
  const auto add_hash = [&](const AddedToken& token) {
    hasher.add_int(token.special).add_int(token.single_word);
    hasher.add_int(token.lstrip).add_int(token.rstrip).add_int(token.normalized);
  };
  for (const AddedToken& token : config.added_tokens) {
    QUIRE_TRY_STATUS(list.add(token, "added_tokens_decoder"));
    hasher.add_int(token.id);
    add_hash(token);
  }
  const auto add_special = [&](const AddedToken& token, bool is_named) -> Status {
    QUIRE_TRY(const bool changed, list.add_special(token, is_named));
    if (changed) {
      hasher.add(token.content);
      add_hash(token);
    }
    return {};
  };
  for (const NamedSpecial& named : config.named) {
    QUIRE_TRY_STATUS(add_special(named.token, true));
  }
  for (const AddedToken& token : config.extra) {
    QUIRE_TRY_STATUS(add_special(token, false));
  }
  return {};
}

SpecialIds special_ids(const TokenizerConfig& config, const Vocabulary& vocabulary,
                       std::optional<TokenId> model_unk) {
  const auto id_of = [&](std::string_view name) {
    const std::string* token = config.find(name);
    return token != nullptr ? vocabulary.find(*token) : std::nullopt;
  };
  SpecialIds ids = {.bos = id_of("bos_token"),
                    .eos = id_of("eos_token"),
                    .pad = id_of("pad_token"),
                    .unk = id_of("unk_token")};
  if (!ids.unk) {
    ids.unk = model_unk;
  }
  return ids;
}

}  // namespace

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json,
                                       std::string_view config_json,
                                       std::string_view special_tokens_map_json) {
  QUIRE_TRY(const base::Json parsed, base::parse_model_json(tokenizer_json, "tokenizer.json"));
  const base::JsonView root = parsed;
  if (!root.is_object()) {
    return {ErrorCode::kInvalidArgument, "tokenizer.json must be an object"};
  }
  QUIRE_TRY(const TokenizerConfig config,
            parse_tokenizer_config(config_json, special_tokens_map_json));

  auto pipeline = std::make_unique<TokenizerPipeline>();
  QUIRE_TRY(ModelSource source, read_model(root.find("model"), pipeline->vocabulary));
  AddedTokenList added(pipeline->vocabulary);
  QUIRE_TRY_STATUS(add_from_json(root, added));
  base::FieldHasher hasher;
  hasher.add("tokenizer.json").add(tokenizer_json);
  QUIRE_TRY_STATUS(add_config_tokens(config, added, hasher));
  std::vector<AddedToken> added_tokens = added.finish();
  if (config.split_special_tokens) {
    hasher.add("split_special_tokens");
  }

  QUIRE_TRY(pipeline->normalizers, normalizers_from_json(root.find("normalizer")));
  QUIRE_TRY_STATUS(pipeline->set_added_tokens(std::move(added_tokens)));
  pipeline->split_special_tokens = config.split_special_tokens;
  QUIRE_TRY(PreTokenizerSet pre_tokenizers,
            pre_tokenizers_from_json(root.find("pre_tokenizer"), source.takes_bytes()));
  pipeline->pre_tokenizers = std::move(pre_tokenizers.steps);
  QUIRE_TRY(BuiltModel built,
            build_model(std::move(source), pipeline->vocabulary, pre_tokenizers.spells_bytes));
  pipeline->model = std::move(built.model);
  if (built.cuts_at_metaspace) {
    pipeline->pre_tokenizers.push_back(make_metaspace_cut());
  }
  QUIRE_TRY(pipeline->post_processor,
            PostProcessor::from_json(root.find("post_processor"), pipeline->vocabulary));
  QUIRE_TRY(pipeline->decoder, spelling_decoder_from_json(root.find("decoder")));
  pipeline->ids = special_ids(config, pipeline->vocabulary, built.unk);
  for (const NamedSpecial& named : config.named) {
    pipeline->named_tokens.push_back({.name = named.name, .text = named.token.content});
  }
  pipeline->fingerprint = base::to_hex(hasher.finish());
  return Tokenizer(std::move(pipeline));
}

}  // namespace quire::text
