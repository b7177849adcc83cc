// Sequences as objects: making, listing, forking, saving and generating.
#include "objects/sequences.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "api/admission.h"
#include "api/call.h"
#include "api/errors.h"
#include "api/extension.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/llm_engine.h"
#include "api/native.h"
#include "api/router.h"
#include "api/sampling.h"
#include "api/source.h"
#include "engine.h"
#include "objects/sequence_table.h"
#include "objects/state.h"
#include "quire/chunks.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr double kSequenceTtl = 900;
constexpr double kMostSequenceTtl = 86400;

std::span<const FieldRule> ttl_rules() {
  static const FieldRule rules[] = {
      {.name = "ttl_seconds",
       .kinds = kNumber,
       .help = "seconds after the last use; default 900",
       .min = 0,
       .max = kMostSequenceTtl,
       .above = true},
  };
  return rules;
}

const FieldTable& new_sequence_table() {
  static const FieldRule rules[] = {
      {.name = "cache_salt",
       .kinds = kString,
       .help = "narrows which cached prefixes are shared",
       .min_size = 1,
       .max_size = 512},
      {.name = "model", .kinds = kString, .help = "a name of the model"},
  };
  static const FieldTable table{
      "SequenceRequest", "The first tokens of a sequence.", {source_rules(), ttl_rules(), rules}};
  return table;
}

const FieldTable& sequence_generate_table() {
  static const FieldRule rules[] = {
      {.name = "sampling",
       .kinds = kObject,
       .help = "how tokens are chosen",
       .members = &native_sampling_table()},
      {.name = "stream", .kinds = kBool, .help = "server-sent events"},
  };
  static const FieldTable table{
      "SequenceGenerateRequest", "How a sequence goes on.", {rules, urgency_rules()}};
  return table;
}

const FieldTable& save_table() {
  static const FieldRule rules[] = {
      {.name = "name",
       .kinds = kString,
       .help = "1 to 64 of A-Z a-z 0-9 . _ -",
       .required = true,
       .min_size = 1,
       .max_size = 64},
  };
  static const FieldTable table{"SequenceSaveRequest", "Where a sequence is saved.", {rules}};
  return table;
}

const FieldTable& load_table() {
  static const FieldRule rules[] = {
      {.name = "name",
       .kinds = kString,
       .help = "as it was saved",
       .required = true,
       .min_size = 1,
       .max_size = 64},
      {.name = "wait", .kinds = kBool, .help = "false: KV is read in the background; default true"},
  };
  static const FieldTable table{
      "SequenceLoadRequest", "A sequence that was saved.", {rules, ttl_rules()}};
  return table;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// Returns a tenant as the name of a folder: other characters, and a leading dot, are escaped.
std::string folder_of(std::string_view tenant) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string folder;
  for (const char c : tenant) {
    if (is_name_character(c) && !(folder.empty() && c == '.')) {
      folder += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      folder += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return folder;
}

// Returns the path of a saved sequence, which no client can lead elsewhere.
Checked<std::string> saved_path(const Services& services, const Call& call, bool create) {
  const std::string name(call.members().text("name").value_or(""));
  if (name.empty() || !std::ranges::all_of(name, &is_name_character)) {
    return invalid("name", "must have 1 to 64 of A-Z a-z 0-9 . _ -");
  }
  if (services.config->state_dir.empty()) {
    return unsupported("name", "the server keeps no sequences; start it with --state-dir");
  }
  const std::filesystem::path folder =
      std::filesystem::path(services.config->state_dir) / folder_of(call.caller->tenant);
  std::error_code failure;
  if (create) {
    std::filesystem::create_directories(folder, failure);
    if (failure) {
      return api_error(
          {.code = ErrorCode::kIo,
           .message = "cannot make the folder " + folder.string() + ": " + failure.message()});
    }
  }
  const std::filesystem::path path = folder / (name + ".seq");
  if (!create && !std::filesystem::exists(path, failure)) {
    ApiError error = refusal(404, "sequence_not_found", "name: no saved sequence " + name);
    error.param = "name";
    error.cause = ErrorCode::kNotFound;
    error.retryable = false;
    return error;
  }
  return path.string();
}

// Returns the first tokens as a sequence, and how many tokens had to be computed for it.
Checked<MadeSequence> compute_sequence(Engine& engine, ChunkedLLM& llm, const PromptSource& source,
                                       const std::string& tenant_salt, const std::string& salt,
                                       const Interrupt& interrupted) {
  QUIRE_TRY(EncodedSource encoded, encode_source(engine, source, tenant_salt, interrupted));
  if (auto* const spec = std::get_if<CompositionSpec>(&encoded.prompt)) {
    spec->salt = tenant_salt;
    const auto info = llm.preview_composition(*spec);
    if (!info.ok()) {
      return composition_error(info.error(), *spec, source.path);
    }
    auto made = llm.sequence(*spec, interrupted, {.salt = tenant_salt});
    if (!made.ok()) {
      return composition_error(made.error(), *spec, source.path);
    }
    return MadeSequence{.sequence = std::move(made).value(),
                        .salt = tenant_salt,
                        .tokens_computed = std::max<std::int64_t>(info->tokens_computed - 1, 0)};
  }
  const auto& ids = std::get<std::vector<TokenId>>(encoded.prompt);
  QUIRE_TRY(const auto parts, llm.llm().explain(ids, {.salt = salt}));
  std::int64_t cached = 0;
  for (const ReusePart& part : parts) {
    cached += part.hit ? part.tokens : 0;
  }
  QUIRE_TRY(Sequence sequence, llm.llm().sequence(ids, interrupted, {.salt = salt}));
  const std::int64_t computed = static_cast<std::int64_t>(ids.size()) - 1 - cached;
  return MadeSequence{.sequence = std::move(sequence),
                      .salt = salt,
                      .tokens_computed = std::max<std::int64_t>(computed, 0)};
}

void create_sequence(Services& services, CallPtr call) {
  if (Check model = check_model(services, *call); !model.ok()) {
    return send_error(services, *call, std::move(model).error());
  }
  auto source = read_source(*services.engine, call->body, "", call->notes);
  if (!source.ok()) {
    return send_error(services, *call, std::move(source).error());
  }
  const std::string tenant_salt = engine_salt(call->caller->tenant);
  const std::string salt =
      engine_salt(call->caller->tenant, call->members().text("cache_salt").value_or(""));
  make_sequence_for(services, call, call->members().number("ttl_seconds").value_or(kSequenceTtl),
                    [engine = services.engine, source = std::move(source).value(), tenant_salt,
                     salt, interrupted = Call::interrupt(call)](ChunkedLLM& llm) {
                      return compute_sequence(*engine, llm, source, tenant_salt, salt, interrupted);
                    });
}

void load_sequence(Services& services, CallPtr call) {
  auto path = saved_path(services, *call, false);
  if (!path.ok()) {
    return send_error(services, *call, std::move(path).error());
  }
  make_sequence_for(
      services, call, call->members().number("ttl_seconds").value_or(kSequenceTtl),
      [path = std::move(path).value(), wait = call->members().flag("wait", true),
       salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) -> Checked<MadeSequence> {
        QUIRE_TRY(Sequence sequence, llm.llm().load_sequence(path, {.wait = wait, .salt = salt}));
        return MadeSequence{.sequence = std::move(sequence), .salt = salt, .tokens_computed = 0};
      });
}

void list_sequences(Services& services, CallPtr call) {
  json::array data;
  for (const SequencePtr& entry : object_state(services).sequences.list(call->caller->tenant)) {
    json::object row = sequence_json(*entry);
    row["expires_at"] = entry->expires_at;
    data.push_back(std::move(row));
  }
  send_json(services, *call, list_json(std::move(data)));
}

void get_sequence(Services& services, CallPtr call) {
  const auto includes = call->query("include");
  if (includes && *includes != "tokens") {
    return send_error(services, *call, invalid("include", "must be tokens"));
  }
  auto entry =
      object_state(services).sequences.find(call->caller->tenant, call->capture("sequence_id"));
  if (!entry.ok()) {
    return send_error(services, *call, std::move(entry).error());
  }
  json::object body = sequence_json(**entry);
  body["expires_at"] = (*entry)->expires_at;
  if (includes) {
    const std::vector<TokenId> tokens = (*entry)->sequence.tokens();
    body["tokens"] = json::array(tokens.begin(), tokens.end());
  }
  send_json(services, *call, body);
}

void delete_sequence(Services& services, CallPtr call) {
  SequenceTable& sequences = object_state(services).sequences;
  auto use = sequences.use(call->caller->tenant, call->capture("sequence_id"));
  if (!use.ok()) {
    return send_error(services, *call, std::move(use).error());
  }
  json::object body;
  body["id"] = (*use)->id;
  body["object"] = "sequence";
  body["deleted"] = true;
  sequences.remove(*sequences.find(call->caller->tenant, (*use)->id));
  send_json(services, *call, body);
}

void fork_sequence(Services& services, CallPtr call) {
  auto use =
      object_state(services).sequences.use(call->caller->tenant, call->capture("sequence_id"));
  if (!use.ok()) {
    return send_error(services, *call, std::move(use).error());
  }
  const double ttl = call->members().number("ttl_seconds").value_or((*use)->ttl_seconds);
  make_sequence_for(services, call, ttl,
                    [use = std::move(use).value()](ChunkedLLM&) -> Checked<MadeSequence> {
                      QUIRE_TRY(Sequence fork, use->sequence.fork());
                      return MadeSequence{.sequence = std::move(fork),
                                          .salt = use->salt,
                                          .marks = use->marks,
                                          .tokens_computed = 0};
                    });
}

const FieldTable& fork_table() {
  static const FieldTable table{"SequenceForkRequest", "A second sequence.", {ttl_rules()}};
  return table;
}

void save_sequence(Services& services, CallPtr call) {
  auto path = saved_path(services, *call, true);
  if (!path.ok()) {
    return send_error(services, *call, std::move(path).error());
  }
  with_sequence(services, call, false,
                [path = std::move(path).value(),
                 name = std::string(call->members().text("name").value_or(""))](
                    const SequenceWork& work) -> Checked<Reply> {
                  QUIRE_TRY_STATUS(work.entry.sequence.save(path));
                  json::object body = sequence_json(work.entry);
                  body["saved"] = name;
                  return Reply{std::move(body)};
                });
}

// A generation that notes its end, with which the sequence has grown and is idle.
class SequenceGeneration final : public Generation {
 public:
  SequenceGeneration(std::unique_ptr<Generation> inner, std::shared_ptr<bool> ended)
      : inner_(std::move(inner)), ended_(std::move(ended)) {}
  [[nodiscard]] bool ready() override { return inner_->ready(); }
  [[nodiscard]] Result<std::optional<Delta>> next() override {
    auto next = inner_->next();
    *ended_ = *ended_ || !next.ok() || !next->has_value() || (*next)->finished;
    return next;
  }
  [[nodiscard]] std::int64_t computed_tokens() const override { return inner_->computed_tokens(); }
  [[nodiscard]] const GenerationOutput& output() const override { return inner_->output(); }
  void abort() override { inner_->abort(); }

 private:
  std::unique_ptr<Generation> inner_;
  std::shared_ptr<bool> ended_;
};

// Returns what keeps a sequence in use. After a generation that was cut, the engine still ends it:
// asking for the counters waits for that.
std::shared_ptr<void> kept_until_idle(Services& services, SequenceTable::Use entry,
                                      std::shared_ptr<bool> ended) {
  return {nullptr, [&loop = services.loop, engine = services.engine, entry = std::move(entry),
                    ended = std::move(ended)](void*) mutable {
            if (*ended) {
              entry.reset();
              return;
            }
            loop.work([engine, entry = std::move(entry)]() mutable {
              (void)engine->counts().ok();
              entry.reset();
            });
          }};
}

void generate_on_sequence(Services& services, CallPtr call) {
  const Members members = call->members();
  NativeSampling sampling;
  if (const json::object* const given = members.object("sampling")) {
    auto read = read_native_sampling(*given, "sampling");
    if (!read.ok()) {
      return send_error(services, *call, std::move(read).error());
    }
    sampling = std::move(read).value();
  }
  Extension urgency;
  if (Check read = read_urgency(*call, urgency); !read.ok()) {
    return send_error(services, *call, std::move(read).error());
  }
  auto use =
      object_state(services).sequences.use(call->caller->tenant, call->capture("sequence_id"));
  if (!use.ok()) {
    return send_error(services, *call, std::move(use).error());
  }
  const SequenceTable::Use entry = std::move(use).value();
  const auto ended = std::make_shared<bool>(false);
  GenerationPlan plan{.extension = std::move(urgency),
                      .stream = members.flag("stream"),
                      .keeps = kept_until_idle(services, entry, ended)};
  PromptPlan prompt{.sampling = sampling.params, .path = "sequence"};
  prompt.tokens = entry->sequence.num_tokens();
  prompt.sampling.max_tokens =
      output_length(sampling.max_tokens, services.config->default_max_tokens,
                    services.engine->facts().context_tokens - prompt.tokens,
                    call->caller->limits.max_completion_tokens);
  prompt.options.salt = entry->salt;
  prompt.starter = [entry, ended](
                       const SamplingParams& params,
                       const RequestOptions& options) -> Result<std::unique_ptr<Generation>> {
    QUIRE_TRY(Stream stream, entry->sequence.stream(params, options));
    return std::unique_ptr<Generation>(
        std::make_unique<SequenceGeneration>(generation_of(std::move(stream)), ended));
  };
  plan.prompts.push_back(std::move(prompt));
  GenerationRun::start(services, call, std::move(plan), native_renderer());
}

constexpr QueryRule kTokensQuery[] = {{"include", "tokens"}};

}  // namespace

json::object sequence_json(const SequenceEntry& entry) {
  json::object object;
  object["id"] = entry.id;
  object["object"] = "sequence";
  object["num_tokens"] = entry.sequence.num_tokens();
  object["grade"] = reuse_grade_name(entry.sequence.grade());
  object["created_at"] = entry.created_at;
  object["expires_at"] = unix_seconds() + static_cast<std::int64_t>(std::ceil(entry.ttl_seconds));
  object["ttl_seconds"] = entry.ttl_seconds;
  return object;
}

void with_sequence(Services& services, const CallPtr& call, bool computes,
                   std::function<Checked<Reply>(const SequenceWork& work)> work) {
  auto use =
      object_state(services).sequences.use(call->caller->tenant, call->capture("sequence_id"));
  if (!use.ok()) {
    return send_error(services, *call, std::move(use).error());
  }
  std::shared_ptr<Ticket> ticket;
  if (computes) {
    auto entered = enter_admission(services, *call);
    if (!entered.ok()) {
      return send_error(services, *call, std::move(entered).error());
    }
    ticket = std::move(entered).value();
  }
  // The use ends before the answer is sent, so that the client's next call finds nobody.
  reply_from_worker(services, call,
                    [entry = std::move(use).value(), ticket, work = std::move(work),
                     interrupted = Call::interrupt(call)](ChunkedLLM& llm) mutable {
                      auto reply = work({llm, *entry, interrupted});
                      entry.reset();
                      ticket.reset();
                      return reply;
                    });
}

void make_sequence_for(Services& services, const CallPtr& call, double ttl_seconds,
                       std::function<Checked<MadeSequence>(ChunkedLLM& llm)> make) {
  auto claim = object_state(services).sequences.claim(call->caller->tenant,
                                                      call->caller->limits.max_sequences);
  if (!claim.ok()) {
    return send_error(services, *call, std::move(claim).error());
  }
  auto ticket = enter_admission(services, *call);
  if (!ticket.ok()) {
    return send_error(services, *call, std::move(ticket).error());
  }
  using MadePtr = std::shared_ptr<MadeSequence>;
  on_worker<MadePtr>(
      services, call,
      [engine = services.engine, make = std::move(make),
       held = std::move(ticket).value()]() mutable -> Checked<MadePtr> {
        QUIRE_TRY(ChunkedLLM* const llm, chunk_registry(*engine));
        QUIRE_TRY(MadeSequence made, make(*llm));
        make = nullptr;
        held.reset();
        return std::make_shared<MadeSequence>(std::move(made));
      },
      [&services, call, ttl_seconds, claimed = std::move(claim).value()](const MadePtr& made) {
        const SequencePtr entry = object_state(services).sequences.add(
            claimed, std::move(made->sequence), std::move(made->salt), ttl_seconds,
            std::move(made->marks));
        json::object body = sequence_json(*entry);
        if (made->tokens_computed) {
          body["tokens_computed"] = *made->tokens_computed;
        }
        send_json(services, *call, body, 201);
      });
}

std::span<const Endpoint> sequence_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "POST",
       .pattern = "/v1/sequences",
       .summary = "Makes a sequence of a prompt, a chat or a composition.",
       .uses = Uses::kEngine,
       .body = &new_sequence_table(),
       .statuses = "201",
       .handle = create_sequence},
      {.method = "GET",
       .pattern = "/v1/sequences",
       .summary = "Lists the tenant's sequences.",
       .handle = list_sequences},
      {.method = "POST",
       .pattern = "/v1/sequences/load",
       .summary = "Loads a sequence that was saved by name.",
       .uses = Uses::kEngine,
       .body = &load_table(),
       .statuses = "201",
       .handle = load_sequence},
      {.method = "GET",
       .pattern = "/v1/sequences/{sequence_id}",
       .summary = "Describes a sequence.",
       .query = kTokensQuery,
       .handle = get_sequence},
      {.method = "DELETE",
       .pattern = "/v1/sequences/{sequence_id}",
       .summary = "Forgets a sequence and frees its KV.",
       .handle = delete_sequence},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/generate",
       .summary = "Generates behind a sequence, and appends what was generated.",
       .uses = Uses::kEngine,
       .body = &sequence_generate_table(),
       .handle = generate_on_sequence},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/fork",
       .summary = "Makes a second sequence of the same tokens; computes nothing.",
       .uses = Uses::kEngine,
       .body = &fork_table(),
       .statuses = "201",
       .handle = fork_sequence},
      {.method = "POST",
       .pattern = "/v1/sequences/{sequence_id}/save",
       .summary = "Saves a sequence by name in --state-dir.",
       .uses = Uses::kEngine,
       .body = &save_table(),
       .handle = save_sequence},
  };
  return endpoints;
}

}  // namespace quire::server
