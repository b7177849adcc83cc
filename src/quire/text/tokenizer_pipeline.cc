#include "quire/text/tokenizer_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/added_tokens.h"
#include "quire/text/decode_stream.h"
#include "quire/text/model.h"
#include "quire/text/normal_text.h"
#include "quire/text/normalizer.h"
#include "quire/text/pre_tokenizer.h"
#include "quire/text/string_table.h"
#include "quire/text/utf8.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire::text {
namespace {

// Pieces of one encode call and where their ids lie in its output. Words repeat, so most of a long
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

Status TokenizerPipeline::set_added_tokens(std::vector<AddedToken> tokens) {
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
      decoded_as[token.id] = token.content;  // the reference decodes it so
    }
    has_normalized_specials = has_normalized_specials || token.special;
    normalized.push_back(std::move(token));
  }
  raw_added = AddedTokenMatcher(std::move(raw));
  normalized_added = AddedTokenMatcher(std::move(normalized));
  return {};
}

void TokenizerPipeline::name_tokens() {
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

void TokenizerPipeline::encode(std::string_view text, const Authors& authors,
                               base::WorkMeter& meter, std::vector<TokenId>& out) const {
  const Authors everybody_user;
  const Authors& trusted = split_special_tokens ? everybody_user : authors;
  ModelScratch scratch(meter);
  for (const auto& range : raw_added.split(text, trusted, meter)) {
    if (range.id >= 0) {
      out.push_back(range.id);
      continue;
    }
    const std::size_t size = range.end - range.begin;
    NormalText normal{.text = std::string(text.substr(range.begin, size)),
                      .authors = {.each = {}, .only = trusted.only},
                      .origin_bytes = range.begin == 0 ? utf8_length(text[0]) : 0,
                      .meter = &meter};
    if (has_normalized_specials && !trusted.each.empty()) {
      normal.authors.each = trusted.each.substr(range.begin, size);
    }
    encode_stretch(std::move(normal), scratch, out);
    if (meter.failed()) {
      return;
    }
  }
}

void TokenizerPipeline::encode_stretch(NormalText normal, ModelScratch& scratch,
                                       std::vector<TokenId>& out) const {
  for (const auto& normalizer : normalizers) {
    normalizer->apply(normal);
    if (normal.meter->failed()) {
      return;
    }
  }
  for (const auto& range : normalized_added.split(normal.text, normal.authors, *normal.meter)) {
    if (range.id >= 0) {
      out.push_back(range.id);
      continue;
    }
    Pieces pieces{.text = normal.text.substr(range.begin, range.end - range.begin),
                  .origin_bytes = normal.origin_bytes - std::min(normal.origin_bytes, range.begin),
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

void TokenizerPipeline::encode_pieces(const Pieces& pieces, ModelScratch& scratch,
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

void TokenizerPipeline::decode(TokenId id, bool skip_special_tokens, DecodeStream& stream,
                               std::string& out) const {
  if (!vocabulary.has(id) || (skip_special_tokens && vocabulary.is_special(id))) {
    return;
  }
  const auto other = decoded_as.find(id);
  stream.push(other != decoded_as.end() ? other->second : vocabulary.token(id), out);
}

}  // namespace quire::text
