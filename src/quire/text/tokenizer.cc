#include "quire/text/tokenizer.h"

#include <algorithm>
#include <array>
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
#include "quire/text/added_tokens.h"
#include "quire/text/decoder.h"
#include "quire/text/model.h"
#include "quire/text/normal_text.h"
#include "quire/text/normalizer.h"
#include "quire/text/pre_tokenizer.h"
#include "quire/text/string_table.h"
#include "quire/text/tokenizer_impl.h"
#include "quire/text/utf8.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire::text {
namespace {

// Pieces of one encode call and where their ids lie in its output: words repeat, so most of a long
// text is copied from an earlier place. Direct mapped, bounded, private to the call.
class PieceMemo {
 public:
  explicit PieceMemo(const Pieces& pieces) : pieces_(&pieces) {
    if (pieces.ranges.size() >= kMinPieces) {
      slots_.resize(kSlots);
    }
  }

  // Appends the ids of an equal earlier piece; false when none is known.
  bool copy(Pieces::Range piece, std::uint64_t hash, std::vector<TokenId>& out) const {
    const Slot& slot = slots_[hash % kSlots];
    if (slot.count == 0 || slot.hash != hash || pieces_->view(slot.piece) != pieces_->view(piece)) {
      return false;
    }
    for (std::size_t i = 0; i < slot.count; ++i) {
      out.push_back(out[slot.first + i]);
    }
    return true;
  }
  void remember(Pieces::Range piece, std::uint64_t hash, std::size_t first, std::size_t count) {
    slots_[hash % kSlots] = {.hash = hash, .piece = piece, .first = first, .count = count};
  }
  [[nodiscard]] bool covers(Pieces::Range piece) const {
    return !slots_.empty() && piece.end - piece.begin <= kMaxBytes;
  }

 private:
  static constexpr std::size_t kMinPieces = 256;  // below, setting up costs more than it saves
  static constexpr std::size_t kSlots = 8192;
  static constexpr std::size_t kMaxBytes = 64;
  struct Slot {
    std::uint64_t hash = 0;
    Pieces::Range piece = {};
    std::size_t first = 0;  // in the output
    std::size_t count = 0;
  };
  const Pieces* pieces_;
  std::vector<Slot> slots_;
};

}  // namespace

Status Tokenizer::Impl::set_added_tokens(std::vector<AddedToken> tokens) {
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  base::WorkMeter meter(kWorkOfCall);
  for (AddedToken& token : tokens) {
    if (!token.normalized) {
      raw.push_back(std::move(token));
      continue;
    }
    meter.grant(work_for_bytes(token.content.size()));
    NormalText content{.text = std::move(token.content), .authors = {}, .meter = &meter};
    for (const auto& normalizer : normalizers) {
      normalizer->apply(content);
    }
    QUIRE_TRY_STATUS(meter.status());
    token.content = std::move(content.text);
    if (token.content != vocabulary.token(token.id)) {
      decoded_as[token.id] = token.content;  // as the reference decodes it
    }
    has_normalized_specials = has_normalized_specials || token.special;
    normalized.push_back(std::move(token));
  }
  raw_added = AddedTokenMatcher(std::move(raw));
  normalized_added = AddedTokenMatcher(std::move(normalized));
  return {};
}

void Tokenizer::Impl::name_tokens() {
  const std::pair<const char*, std::optional<TokenId>> names[] = {{"bos_token", ids.bos},
                                                                  {"eos_token", ids.eos},
                                                                  {"unk_token", ids.unk},
                                                                  {"pad_token", ids.pad}};
  for (const auto& [name, id] : names) {
    if (id && vocabulary.has(*id)) {
      named_tokens.push_back({.name = name, .text = std::string(vocabulary.token(*id))});
    }
  }
}

void Tokenizer::Impl::encode(std::string_view text, const Authors& authors, base::WorkMeter& meter,
                             std::vector<TokenId>& out) const {
  const Authors everybody_user;
  const Authors& trusted = split_special_tokens ? everybody_user : authors;
  ModelScratch scratch(meter);
  for (const auto& segment : raw_added.split(text, trusted, meter)) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
      continue;
    }
    const std::size_t size = segment.end - segment.begin;
    NormalText normal{.text = std::string(text.substr(segment.begin, size)),
                      .authors = {.each = {}, .only = trusted.only},
                      .origin_bytes = segment.begin == 0 ? utf8_length(text[0]) : 0,
                      .meter = &meter};
    if (has_normalized_specials && !trusted.each.empty()) {
      normal.authors.each = trusted.each.substr(segment.begin, size);
    }
    encode_stretch(std::move(normal), scratch, out);
    if (meter.failed()) {
      return;
    }
  }
}

void Tokenizer::Impl::encode_stretch(NormalText normal, ModelScratch& scratch,
                                     std::vector<TokenId>& out) const {
  for (const auto& normalizer : normalizers) {
    normalizer->apply(normal);
    if (normal.meter->failed()) {
      return;
    }
  }
  for (const auto& segment : normalized_added.split(normal.text, normal.authors, *normal.meter)) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
      continue;
    }
    Pieces pieces{
        .text = normal.text.substr(segment.begin, segment.end - segment.begin),
        .origin_bytes = normal.origin_bytes - std::min(normal.origin_bytes, segment.begin),
        .meter = normal.meter};
    pieces.ranges.push_back({.begin = 0, .end = pieces.text.size()});
    for (const auto& step : pre_tokenizers) {
      step->apply(pieces);
      if (pieces.meter->failed()) {
        return;
      }
    }
    encode_pieces(pieces, scratch, out);
  }
}

void Tokenizer::Impl::encode_pieces(const Pieces& pieces, ModelScratch& scratch,
                                    std::vector<TokenId>& out) const {
  PieceMemo memo(pieces);
  for (const Pieces::Range range : pieces.ranges) {
    const std::string_view piece = pieces.view(range);
    if (!scratch.meter->step_bytes(piece.size())) {
      return;
    }
    if (!memo.covers(range)) {
      model->tokenize(piece, scratch, out);
      continue;
    }
    const std::uint64_t hash = hash_bytes(piece);
    if (!memo.copy(range, hash, out)) {
      const std::size_t first = out.size();
      model->tokenize(piece, scratch, out);
      memo.remember(range, hash, first, out.size() - first);
    }
  }
}

void Tokenizer::Impl::decode(TokenId id, bool skip_special_tokens, DecodeStream& stream,
                             std::string& out) const {
  if (!vocabulary.has(id) || (skip_special_tokens && vocabulary.is_special(id))) {
    return;
  }
  const auto other = decoded_as.find(id);
  stream.push(other != decoded_as.end() ? other->second : vocabulary.token(id), out);
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
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
  return {ErrorCode::kIo, base::str_cat("folder ", base::quoted(folder),
                                        " has neither tokenizer.json nor tokenizer.model")};
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
  impl_->encode(text,
                {.each = {}, .only = options.parse_special ? Author::kTemplate : Author::kUser},
                meter, ids);
  if (options.add_special_tokens) {
    ids = impl_->post_processor.apply(std::move(ids), meter);
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
  impl_->encode(text, authors, *meter, ids);
  QUIRE_TRY_STATUS(meter->status());
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens,
                                      base::WorkMeter* meter) const {
  base::WorkMeter own(kWorkOfCall);
  meter = meter != nullptr ? meter : &own;
  meter->grant(work_for_bytes(ids.size() * kInputBytesPerToken));
  const std::int32_t num_ids = std::max(vocab_size(), padded_size_);
  DecodeStream stream(impl_->decoder, *meter);
  std::string text;
  for (const TokenId id : ids) {
    if (id < 0 || id >= num_ids) {
      return {ErrorCode::kInvalidArgument, base::str_cat("token id ", id, " is outside the ",
                                                         num_ids, " ids of the vocabulary")};
    }
    impl_->decode(id, skip_special_tokens, stream, text);
    if (!meter->step()) {
      break;
    }
  }
  stream.flush(text);
  QUIRE_TRY_STATUS(meter->status());
  return text;
}

std::int32_t Tokenizer::vocab_size() const { return impl_->vocabulary.end_id(); }

Result<std::string> Tokenizer::id_to_token(TokenId id) const {
  if (!impl_->vocabulary.has(id)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("token id ", id, " is not in the vocabulary of ", vocab_size(), " ids")};
  }
  return std::string(impl_->vocabulary.token(id));
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->vocabulary.find(token);
}

bool Tokenizer::is_special(TokenId id) const { return impl_->vocabulary.is_special(id); }
std::optional<TokenId> Tokenizer::bos_token_id() const { return impl_->ids.bos; }
std::optional<TokenId> Tokenizer::eos_token_id() const { return impl_->ids.eos; }
const std::vector<TokenId>& Tokenizer::turn_end_ids() const { return impl_->turn_end_ids; }
std::optional<TokenId> Tokenizer::pad_token_id() const { return impl_->ids.pad; }
std::optional<TokenId> Tokenizer::unk_token_id() const { return impl_->ids.unk; }
const std::vector<NamedToken>& Tokenizer::named_tokens() const { return impl_->named_tokens; }

// A decoder that puts something between tokens shows it between two of the same.
bool Tokenizer::stands_apart(TokenId id) const {
  if (!impl_->raw_added.always_cuts(id)) {
    return false;
  }
  const auto once = decode({&id, 1}, false);
  const auto twice = decode(std::array{id, id}, false);
  return once.ok() && twice.ok() && *once == impl_->vocabulary.token(id) && *twice == *once + *once;
}

bool Tokenizer::retokenizes_alike(std::span<const TokenId> ids) const {
  const auto text = decode(ids, false);
  if (!text.ok()) {
    return false;
  }
  const auto again = encode(*text, {.add_special_tokens = false});
  return again.ok() && std::ranges::equal(*again, ids);
}

std::string Tokenizer::fingerprint() const { return impl_->fingerprint; }

}  // namespace quire::text
