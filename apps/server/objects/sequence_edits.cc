// Sequences as objects: changing them, and looking into them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/messages.h"
#include "api/prompts.h"
#include "api/router.h"
#include "api/sampling.h"
#include "objects/sequences.h"
#include "objects/state.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/sequence_types.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr std::int64_t kMostTopLogits = 1000;
constexpr std::int64_t kTopLogits = 20;
constexpr double kMostTokens = 2147483647;

std::span<const FieldRule> added_rules() {
  static const FieldRule rules[] = {
      {.name = "text",
       .kinds = kString,
       .help = "encoded without special tokens; the text of one stays text"},
      {.name = "token_ids", .kinds = kArray, .elements = kInteger},
  };
  return rules;
}

const FieldTable& append_table() {
  static const FieldRule rules[] = {
      {.name = "messages",
       .kinds = kArray,
       .help = "a chat, rendered by the template",
       .min_size = 1,
       .members = &message_table(),
       .elements = kObject},
  };
  static const FieldTable table{
      "SequenceAppendRequest", "Tokens behind a sequence.", {added_rules(), rules}};
  return table;
}

const FieldTable& replace_table() {
  static const FieldRule rules[] = {
      {.name = "start", .kinds = kInteger, .required = true, .min = 0, .max = kMostTokens},
      {.name = "stop", .kinds = kInteger, .required = true, .min = 0, .max = kMostTokens},
      {.name = "mode",
       .kinds = kString,
       .help = "approximate keeps the KV behind the edit; default exact",
       .words = "exact|approximate"},
  };
  static const FieldTable table{
      "SequenceReplaceRequest", "Tokens in the place of others.", {added_rules(), rules}};
  return table;
}

const FieldTable& rollback_table() {
  static const FieldRule rules[] = {
      {.name = "checkpoint", .kinds = kString, .help = "id of a checkpoint, which stays"},
      {.name = "length", .kinds = kInteger, .help = "tokens to keep", .min = 0, .max = kMostTokens},
      {.name = "drop",
       .kinds = kInteger,
       .help = "tokens to cut from the end",
       .min = 0,
       .max = kMostTokens},
  };
  static const FieldTable table{"SequenceRollbackRequest", "One way to go back.", {rules}};
  return table;
}

const FieldTable& commit_table() {
  static const FieldRule rules[] = {
      {.name = "checkpoint",
       .kinds = kString,
       .help = "forgets this checkpoint and later ones; default: all"},
  };
  static const FieldTable table{"SequenceCommitRequest", "Which checkpoints go.", {rules}};
  return table;
}

const FieldTable& diff_table() {
  static const FieldRule rules[] = {
      {.name = "other", .kinds = kString, .help = "id of another sequence", .required = true},
  };
  static const FieldTable table{"SequenceDiffRequest", "A sequence to compare with.", {rules}};
  return table;
}

// Tokens that a body adds: a text, ids, or messages.
using Added = std::variant<std::string, std::vector<TokenId>, ChatPrompt>;

// Reads exactly one of `text`, `token_ids` and `messages`.
Checked<Added> read_added(const Services& services, Call& call) {
  const Members members = call.members();
  const int given = static_cast<int>(members.has("text")) +
                    static_cast<int>(members.has("token_ids")) +
                    static_cast<int>(members.has("messages"));
  if (given != 1) {
    return invalid("text", "give exactly one of text, token_ids and messages");
  }
  if (const auto text = members.text("text")) {
    return Added(std::string(*text));
  }
  if (const json::array* const ids = members.array("token_ids")) {
    QUIRE_TRY(auto read, read_ids(*ids, "token_ids", services.engine->facts().vocab_size));
    return Added(std::move(read));
  }
  ChatPrompt chat;
  QUIRE_TRY(chat.messages, read_messages(*members.array("messages"), "messages", call.notes));
  return Added(std::move(chat));
}

Checked<std::vector<TokenId>> encode_added(const Engine& engine, const Added& added,
                                           const Interrupt& interrupted) {
  if (const auto* const ids = std::get_if<std::vector<TokenId>>(&added)) {
    return *ids;
  }
  if (const auto* const chat = std::get_if<ChatPrompt>(&added)) {
    QUIRE_TRY(EncodedChat encoded, encode_chat(engine, *chat, interrupted));
    return std::move(encoded.ids);
  }
  const std::string& text = std::get<std::string>(added);
  QUIRE_TRY_STATUS(check_bytes(engine, text.size(), "text"));
  QUIRE_TRY(const Tokenizer tokenizer, engine.tokenizer());
  QUIRE_TRY(auto ids, tokenizer.encode_literally(text, interrupted));
  return ids;
}

void append_tokens(Services& services, CallPtr call) {
  auto added = read_added(services, *call);
  if (!added.ok()) {
    return send_error(services, *call, std::move(added).error());
  }
  with_sequence(services, call, true,
                [engine = services.engine,
                 added = std::move(added).value()](const SequenceWork& work) -> Checked<Reply> {
                  QUIRE_TRY(const auto ids, encode_added(*engine, added, work.interrupted));
                  QUIRE_TRY_STATUS(
                      work.entry.sequence.append(ids, work.interrupted, {.salt = work.entry.salt}));
                  return Reply{sequence_json(work.entry)};
                });
}

void replace_tokens(Services& services, CallPtr call) {
  const Members members = call->members();
  auto added = members.has("text") || members.has("token_ids")
                   ? read_added(services, *call)
                   : Checked<Added>(Added(std::vector<TokenId>()));
  if (!added.ok()) {
    return send_error(services, *call, std::move(added).error());
  }
  const EditMode mode =
      members.text("mode") == "approximate" ? EditMode::kApproximate : EditMode::kExact;
  with_sequence(
      services, call, true,
      [engine = services.engine, added = std::move(added).value(), mode,
       start = members.integer("start").value_or(0),
       stop = members.integer("stop").value_or(0)](const SequenceWork& work) -> Checked<Reply> {
        QUIRE_TRY(const auto ids, encode_added(*engine, added, work.interrupted));
        QUIRE_TRY_STATUS(work.entry.sequence.replace(start, stop, ids, work.interrupted, mode,
                                                     {.salt = work.entry.salt}));
        return Reply{sequence_json(work.entry)};
      });
}

void add_checkpoint(Services& services, CallPtr call) {
  with_sequence(services, call, false, [](const SequenceWork& work) -> Checked<Reply> {
    SequenceEntry& entry = work.entry;
    QUIRE_TRY(Mark mark, entry.sequence.checkpoint());
    entry.marks.push_back({new_id("mark_"), std::move(mark), entry.sequence.num_tokens()});
    json::object body;
    body["id"] = entry.marks.back().id;
    body["object"] = "checkpoint";
    body["sequence_id"] = entry.id;
    body["num_tokens"] = entry.marks.back().num_tokens;
    return Reply{std::move(body), 201};
  });
}

using NamedMarks = std::vector<SequenceEntry::NamedMark>;

Checked<NamedMarks::iterator> find_mark(NamedMarks& marks, std::string_view id) {
  const auto found = std::ranges::find(marks, id, &SequenceEntry::NamedMark::id);
  if (found == marks.end()) {
    ApiError error =
        refusal(404, "checkpoint_not_found", "checkpoint: no checkpoint " + std::string(id));
    error.param = "checkpoint";
    error.cause = ErrorCode::kNotFound;
    error.retryable = false;
    return error;
  }
  return found;
}

Checked<Reply> roll_back_to_mark(SequenceEntry& entry, const std::string& id) {
  QUIRE_TRY(const auto mark, find_mark(entry.marks, id));
  QUIRE_TRY_STATUS(entry.sequence.rollback(mark->mark));
  entry.marks.erase(mark + 1, entry.marks.end());
  return Reply{sequence_json(entry)};
}

void roll_back(Services& services, CallPtr call) {
  const Members members = call->members();
  const auto checkpoint = members.text("checkpoint");
  const auto length = members.integer("length");
  const auto drop = members.integer("drop");
  if (static_cast<int>(checkpoint.has_value()) + static_cast<int>(length.has_value()) +
          static_cast<int>(drop.has_value()) !=
      1) {
    return send_error(services, *call,
                      invalid("checkpoint", "give exactly one of checkpoint, length and drop"));
  }
  with_sequence(services, call, false,
                [id = std::string(checkpoint.value_or("")), length,
                 drop](const SequenceWork& work) -> Checked<Reply> {
                  SequenceEntry& entry = work.entry;
                  if (!length && !drop) {
                    return roll_back_to_mark(entry, id);
                  }
                  const std::int64_t kept = length ? *length : entry.sequence.num_tokens() - *drop;
                  if (const Status cut = entry.sequence.rollback_to(kept); !cut.ok()) {
                    return api_error(cut.error(), length ? "length" : "drop");
                  }
                  return Reply{sequence_json(entry)};
                });
}

void commit_marks(Services& services, CallPtr call) {
  const auto checkpoint = call->members().text("checkpoint");
  with_sequence(services, call, false,
                [all = !checkpoint, id = std::string(checkpoint.value_or(""))](
                    const SequenceWork& work) -> Checked<Reply> {
                  SequenceEntry& entry = work.entry;
                  if (all) {
                    QUIRE_TRY_STATUS(entry.sequence.commit());
                    entry.marks.clear();
                  } else {
                    QUIRE_TRY(const auto mark, find_mark(entry.marks, id));
                    QUIRE_TRY_STATUS(entry.sequence.commit(mark->mark));
                    entry.marks.erase(mark, entry.marks.end());
                  }
                  return Reply{sequence_json(entry)};
                });
}

Checked<Reply> top_logits(const SequenceWork& work, std::int64_t top) {
  QUIRE_TRY(const std::vector<float> logits, work.entry.sequence.logits(work.interrupted));
  std::vector<TokenId> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<TokenId>(i);
  }
  const auto count = std::min<std::int64_t>(top, static_cast<std::int64_t>(ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](TokenId a, TokenId b) {
    const float left = logits[static_cast<std::size_t>(a)];
    const float right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  });
  json::array list;
  for (std::int64_t i = 0; i < count; ++i) {
    const TokenId id = ids[static_cast<std::size_t>(i)];
    json::object entry;
    entry["token_id"] = id;
    entry["logit"] = static_cast<double>(logits[static_cast<std::size_t>(id)]);
    list.push_back(std::move(entry));
  }
  json::object body;
  body["logits"] = std::move(list);
  return Reply{std::move(body)};
}

void get_logits(Services& services, CallPtr call) {
  auto top = query_integer(*call, "top", kTopLogits, 1, kMostTopLogits);
  if (!top.ok()) {
    return send_error(services, *call, std::move(top).error());
  }
  with_sequence(services, call, true,
                [top = *top](const SequenceWork& work) { return top_logits(work, top); });
}

void diff_sequences(Services& services, CallPtr call) {
  // A sequence in use may be compared with: others see it from before the change.
  auto other = object_state(services).sequences.find(call->caller->tenant,
                                                     call->members().text("other").value_or(""));
  if (!other.ok()) {
    ApiError error = std::move(other).error();
    error.message = "other: " + error.message;
    error.param = "other";
    return send_error(services, *call, std::move(error));
  }
  with_sequence(services, call, false,
                [other = std::move(other).value()](const SequenceWork& work) -> Checked<Reply> {
                  QUIRE_TRY(const SequenceDiff diff, work.entry.sequence.diff(other->sequence));
                  json::object body;
                  body["common_tokens"] = diff.common_tokens;
                  body["left"] = json::array(diff.left.begin(), diff.left.end());
                  body["right"] = json::array(diff.right.begin(), diff.right.end());
                  body["shared_blocks"] = diff.shared_blocks;
                  return Reply{std::move(body)};
                });
}

const FieldTable& empty_table() {
  static const FieldTable table{"SequenceCheckpointRequest", "Nothing.", {}};
  return table;
}

constexpr QueryRule kTopQuery[] = {{"top", "1 to 1000; default 20", "integer"}};

}  // namespace

std::span<const Endpoint> sequence_edit_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/append",
       .summary = "Puts tokens behind a sequence.",
       .uses = Uses::kEngine,
       .body = &append_table(),
       .handle = append_tokens},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/replace",
       .summary = "Puts tokens in the place of others.",
       .uses = Uses::kEngine,
       .body = &replace_table(),
       .handle = replace_tokens},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/checkpoints",
       .summary = "Marks a moment to come back to.",
       .uses = Uses::kEngine,
       .body = &empty_table(),
       .statuses = "201",
       .handle = add_checkpoint},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/rollback",
       .summary = "Goes back to a checkpoint or a length.",
       .uses = Uses::kEngine,
       .body = &rollback_table(),
       .handle = roll_back},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/commit",
       .summary = "Forgets checkpoints and keeps what came since.",
       .uses = Uses::kEngine,
       .body = &commit_table(),
       .handle = commit_marks},
      {.method = "GET",
       .pattern = "/v1/sequences/{sequence_id}/logits",
       .summary = "Gives the largest logits of the next token.",
       .uses = Uses::kEngine,
       .query = kTopQuery,
       .handle = get_logits},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/diff",
       .summary = "Says how two sequences differ.",
       .uses = Uses::kEngine,
       .body = &diff_table(),
       .handle = diff_sequences},
  };
  return endpoints;
}

}  // namespace quire::server
