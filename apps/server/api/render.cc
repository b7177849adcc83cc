#include "api/render.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/generation.h"
#include "api/json.h"
#include "api/utf8.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::server {
namespace {

// Returns a finite number: JSON has no others.
double finite(double value) {
  constexpr double kLowest = -9999;
  return std::isfinite(value) ? value : (value < 0 ? kLowest : 0);
}

double per_second(double count, double ms) { return ms > 0 ? count * 1000 / ms : 0; }

json::array bytes_json(std::string_view bytes) {
  return array_of(bytes,
                  [](char byte) -> std::int64_t { return static_cast<unsigned char>(byte); });
}

json::object logprob_entry(const TokenPiece& piece, double logprob) {
  json::object entry;
  entry["token"] = piece.token;
  entry["logprob"] = finite(logprob);
  entry["bytes"] = bytes_json(piece.bytes);
  return entry;
}

}  // namespace

json::object usage_json(const RunReport& report, std::int64_t reasoning_tokens) {
  const Usage& usage = report.usage;
  json::object object;
  object["prompt_tokens"] = usage.prompt_tokens;
  object["completion_tokens"] = usage.completion_tokens;
  object["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json::object prompt;
  prompt["cached_tokens"] = usage.cached_tokens;
  prompt["cache_write_tokens"] = report.cache_write_tokens;
  object["prompt_tokens_details"] = std::move(prompt);
  json::object completion;
  completion["reasoning_tokens"] = reasoning_tokens;
  completion["accepted_prediction_tokens"] = usage.accepted_tokens;
  completion["rejected_prediction_tokens"] = usage.drafted_tokens - usage.accepted_tokens;
  object["completion_tokens_details"] = std::move(completion);
  return object;
}

json::array parts_json(const std::vector<ReusePart>& parts) {
  return array_of(parts, [](const ReusePart& part) {
    json::object object;
    object["chunk_type"] = part.chunk_type;
    object["chunk_id"] = part.chunk_id;
    object["position"] = part.position;
    object["tokens"] = part.tokens;
    object["hit"] = part.hit;
    object["reason"] = part.reason;
    if (!part.kv_dtype.empty()) {
      object["kv_dtype"] = part.kv_dtype;
    }
    return object;
  });
}

json::object quire_json(const RunReport& report) {
  json::object object;
  object["request_id"] = report.request_id;
  object["grade"] = reuse_grade_name(report.reuse.grade);
  object["cached_tokens"] = report.usage.cached_tokens;
  object["computed_tokens"] = report.computed_tokens;
  object["drafted_tokens"] = report.usage.drafted_tokens;
  object["accepted_tokens"] = report.usage.accepted_tokens;
  object["recompute_share"] = report.reuse.recompute_share;
  json::array sources;
  for (const auto& [source, tokens] : report.reuse.sources) {
    if (!source.starts_with("computed") && tokens > 0) {
      json::object entry;
      entry["source"] = source;
      entry["tokens"] = tokens;
      sources.push_back(std::move(entry));
    }
  }
  object["sources"] = std::move(sources);
  object["queue_ms"] = report.queue_ms;
  object["first_token_ms"] = report.first_token_ms;
  object["total_ms"] = report.total_ms;
  if (report.parts) {
    object["parts"] = parts_json(*report.parts);
  }
  return object;
}

json::object timings_json(const RunReport& report) {
  const double prompt_ms = std::max(report.first_token_ms - report.queue_ms, 0.0);
  const double predicted_ms = std::max(report.total_ms - report.first_token_ms, 0.0);
  const auto computed = static_cast<double>(report.computed_tokens);
  const auto predicted = static_cast<double>(report.usage.completion_tokens);
  json::object object;
  object["cache_n"] = report.usage.cached_tokens;
  object["prompt_n"] = report.computed_tokens;
  object["prompt_ms"] = prompt_ms;
  object["prompt_per_token_ms"] = computed > 0 ? prompt_ms / computed : 0;
  object["prompt_per_second"] = per_second(computed, prompt_ms);
  object["predicted_n"] = report.usage.completion_tokens;
  object["predicted_ms"] = predicted_ms;
  object["predicted_per_token_ms"] = predicted > 0 ? predicted_ms / predicted : 0;
  object["predicted_per_second"] = per_second(predicted, predicted_ms);
  return object;
}

const char* finish_word(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

json::value stop_reason(const GenerationOutput& output) {
  switch (output.stopped_by.kind) {
    case StoppedBy::Kind::kStopString:
      return json::value(output.stopped_by.text);
    case StoppedBy::Kind::kStopId:
      return output.stopped_by.id;
    default:
      return nullptr;
  }
}

json::array ids_json(const std::vector<TokenId>& ids) {
  return array_of(ids, [](TokenId id) { return id; });
}

void append_event(std::string& out, const json::value& body) {
  out += "data: ";
  out += json::serialize(body);
  out += "\n\n";
}

const TokenPiece& TokenPieces::piece(TokenId id) {
  const auto known = pieces_.find(id);
  if (known != pieces_.end()) {
    return known->second;
  }
  TokenPiece piece;
  const std::vector<TokenId> one = {id};
  const auto bytes = tokenizer_.token_bytes(id);
  const auto plain = tokenizer_.decode(one, true);
  const auto full = tokenizer_.decode(one, false);
  if (bytes.ok() && plain.ok() && full.ok()) {
    piece.special = plain->empty() && !full->empty();
    piece.bytes = piece.special ? std::string() : *bytes;
    piece.token = repaired_utf8(*bytes);
  }
  return pieces_.emplace(id, std::move(piece)).first->second;
}

double logprob_of(const TokenLogprobs& entry, TokenId id) {
  const auto found = std::ranges::find(entry, id, &std::pair<TokenId, float>::first);
  return found == entry.end() ? -std::numeric_limits<double>::infinity()
                              : static_cast<double>(found->second);
}

json::array chat_logprobs(TokenPieces& pieces, const std::vector<TokenId>& ids,
                          const std::vector<TokenLogprobs>& logprobs, std::int64_t top) {
  json::array content;
  for (std::size_t i = 0; i < ids.size() && i < logprobs.size(); ++i) {
    json::object entry = logprob_entry(pieces.piece(ids[i]), logprob_of(logprobs[i], ids[i]));
    json::array likeliest;
    for (const auto& [id, logprob] : logprobs[i]) {
      if (static_cast<std::int64_t>(likeliest.size()) == top) {
        break;
      }
      likeliest.push_back(logprob_entry(pieces.piece(id), static_cast<double>(logprob)));
    }
    entry["top_logprobs"] = std::move(likeliest);
    content.push_back(std::move(entry));
  }
  return content;
}

std::int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

void CompletionLogprobs::add(TokenPieces& pieces, const std::vector<TokenId>& ids,
                             const std::vector<TokenLogprobs>& logprobs, std::int64_t top) {
  for (std::size_t i = 0; i < ids.size() && i < logprobs.size(); ++i) {
    const TokenPiece& piece = pieces.piece(ids[i]);
    tokens_.emplace_back(piece.token);
    text_offset_.emplace_back(offset_);
    offset_ += count_characters(piece.bytes);
    if (logprobs[i].empty()) {
      token_logprobs_.emplace_back(nullptr);
      top_logprobs_.emplace_back(nullptr);
      continue;
    }
    token_logprobs_.emplace_back(finite(logprob_of(logprobs[i], ids[i])));
    json::object likeliest;
    for (const auto& [id, logprob] : logprobs[i]) {
      // The chosen token stands among them, as with OpenAI.
      if (static_cast<std::int64_t>(likeliest.size()) < top || id == ids[i]) {
        likeliest.emplace(pieces.piece(id).token, finite(static_cast<double>(logprob)));
      }
    }
    top_logprobs_.push_back(top > 0 ? json::value(std::move(likeliest)) : json::value(nullptr));
  }
}

json::object CompletionLogprobs::take() {
  json::object object;
  object["tokens"] = std::exchange(tokens_, {});
  object["token_logprobs"] = std::exchange(token_logprobs_, {});
  object["top_logprobs"] = std::exchange(top_logprobs_, {});
  object["text_offset"] = std::exchange(text_offset_, {});
  return object;
}

}  // namespace quire::server
