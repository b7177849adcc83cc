#include "quire/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/decode_stream.h"
#include "quire/text/named_token.h"
#include "quire/text/normal_text.h"
#include "quire/text/tokenizer_pipeline.h"
#include "quire/text/utf8.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire::text {

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerPipeline> pipeline)
    : pipeline_(std::move(pipeline)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_folder(const std::string& folder) {
  const std::filesystem::path path = folder;
  const auto read_if_there = [&](const char* name) -> Result<std::string> {
    const bool there = std::filesystem::exists(path / name);
    return there ? base::read_file(path / name) : Result<std::string>(std::string());
  };
  QUIRE_TRY(const std::string config, read_if_there("tokenizer_config.json"));
  if (std::filesystem::exists(path / "tokenizer.json")) {
    QUIRE_TRY(const std::string text, base::read_file(path / "tokenizer.json"));
    QUIRE_TRY(const std::string map, read_if_there("special_tokens_map.json"));
    return from_json(text, config, map);
  }
  if (std::filesystem::exists(path / "tokenizer.model")) {
    QUIRE_TRY(const std::string map, read_if_there("special_tokens_map.json"));
    QUIRE_TRY(const std::string added, read_if_there("added_tokens.json"));
    return from_sentencepiece(path / "tokenizer.model", config, map, added);
  }
  return Error{.code = ErrorCode::kIo,
               .message = base::str_cat("folder ", base::quoted(folder),
                                        " has neither tokenizer.json nor tokenizer.model"),
               .system_error = ENOENT};
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  base::WorkMeter own(kWorkOfCall);
  base::WorkMeter& meter = options.meter != nullptr ? *options.meter : own;
  meter.grant(work_for_bytes(text.size()));
  std::string repaired;
  if (valid_utf8_prefix(text) < text.size()) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3);
  pipeline_->encode(text,
                    {.each = {}, .only = options.parse_special ? Author::kTemplate : Author::kUser},
                    meter, ids);
  if (options.add_special_tokens) {
    ids = pipeline_->post_processor.apply(std::move(ids), meter);
  }
  QUIRE_TRY_STATUS(meter.status());
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::encode_spans(std::span<const TextSpan> spans,
                                                     base::WorkMeter* meter) const {
  base::WorkMeter own(kWorkOfCall);
  meter = meter != nullptr ? meter : &own;
  std::string text;
  Authors authors;
  bool behind_empty = false;
  for (const TextSpan& span : spans) {
    if (span.text.empty()) {
      behind_empty = behind_empty || span.author == Author::kUser;
      continue;
    }
    const std::size_t begin = text.size();
    // Repaired span by span, so that bytes of two spans never make one character.
    text += valid_utf8_prefix(span.text) == span.text.size() ? std::string(span.text)
                                                             : repair_utf8(span.text);
    authors.each.resize(text.size(), static_cast<char>(span.author));
    if (std::exchange(behind_empty, false) && span.author == Author::kTemplate) {
      authors.each[begin] = static_cast<char>(Author::kApart);
    }
  }
  meter->grant(work_for_bytes(text.size()));
  std::vector<TokenId> ids;
  pipeline_->encode(text, authors, *meter, ids);
  QUIRE_TRY_STATUS(meter->status());
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens,
                                      base::WorkMeter* meter) const {
  base::WorkMeter own(kWorkOfCall);
  meter = meter != nullptr ? meter : &own;
  meter->grant(work_for_bytes(ids.size() * kInputBytesPerToken));
  const std::int32_t num_ids = std::max(vocab_size(), padded_size_);
  DecodeStream stream(pipeline_->decoder, *meter);
  std::string text;
  for (const TokenId id : ids) {
    if (id < 0 || id >= num_ids) {
      return {ErrorCode::kInvalidArgument, base::str_cat("token id ", id, " is outside the ",
                                                         num_ids, " ids of the vocabulary")};
    }
    pipeline_->decode(id, skip_special_tokens, stream, text);
    if (!meter->step()) {
      break;
    }
  }
  stream.flush(text);
  QUIRE_TRY_STATUS(meter->status());
  return text;
}

std::int32_t Tokenizer::vocab_size() const { return pipeline_->vocabulary.end_id(); }

Result<std::string> Tokenizer::id_to_token(TokenId id) const {
  if (!pipeline_->vocabulary.has(id)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("token id ", id, " is not in the vocabulary of ", vocab_size(), " ids")};
  }
  return std::string(pipeline_->vocabulary.token(id));
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return pipeline_->vocabulary.find(token);
}

bool Tokenizer::is_special(TokenId id) const { return pipeline_->vocabulary.is_special(id); }
std::optional<TokenId> Tokenizer::bos_token_id() const { return pipeline_->ids.bos; }
std::optional<TokenId> Tokenizer::eos_token_id() const { return pipeline_->ids.eos; }
const std::vector<TokenId>& Tokenizer::turn_end_ids() const { return pipeline_->turn_end_ids; }
std::optional<TokenId> Tokenizer::pad_token_id() const { return pipeline_->ids.pad; }
std::optional<TokenId> Tokenizer::unk_token_id() const { return pipeline_->ids.unk; }
const std::vector<NamedToken>& Tokenizer::named_tokens() const { return pipeline_->named_tokens; }

// Tells whether the text of a token stands apart. A decoder that puts something between tokens
// shows it between two of the same.
bool Tokenizer::stands_apart(TokenId id) const {
  if (!pipeline_->raw_added.always_cuts(id)) {
    return false;
  }
  const auto once = decode({&id, 1}, false);
  const auto twice = decode(std::array{id, id}, false);
  return once.ok() && twice.ok() && *once == pipeline_->vocabulary.token(id) &&
         *twice == *once + *once;
}

bool Tokenizer::retokenizes_alike(std::span<const TokenId> ids) const {
  const auto text = decode(ids, false);
  if (!text.ok()) {
    return false;
  }
  const auto again = encode(*text, {.add_special_tokens = false});
  return again.ok() && std::ranges::equal(*again, ids);
}

std::string Tokenizer::fingerprint() const { return pipeline_->fingerprint; }

}  // namespace quire::text
