#include "quire/chunks.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/api/await.h"
#include "quire/api/choices.h"
#include "quire/api/llm_impl.h"
#include "quire/api/prompt_text.h"
#include "quire/api/sequence_impl.h"
#include "quire/api/stream_impl.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_registrar.h"
#include "quire/chunks/chunk_service.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/composition_preview.h"
#include "quire/engine/active_request.h"
#include "quire/engine/call_deadline.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/llm_options.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/sequences/sequence_service.h"

namespace quire {

using chunks::ChunkService;
using engine::RequestKind;

struct Composition::Impl {
  CompositionSpec spec;
  CompositionInfo info;
};

struct ChunkedLLM::Impl {
  LLM llm;
};

namespace {

// The service and the engine that keeps it alive during the call.
struct Service {
  std::shared_ptr<runtime::Runtime> runtime;
  ChunkService* operator->() const { return &runtime->chunks(); }
};

Result<Service> service_of(const LLM& llm) {
  QUIRE_TRY(auto runtime, llm.impl().open());
  return Service{std::move(runtime)};
}

// Returns whether this mode computes contexts behind nothing: behind the system chunk, the
// composition would compute them again.
bool is_independent(const CompositionSpec& spec) {
  const ReuseMode mode = spec.mode == ReuseMode::kBlend ? spec.blend.base : spec.mode;
  return mode == ReuseMode::kIndependent;
}

// Returns the run of a choice. `run` has what all choices of its composition share.
chunks::ComposedRun run_of(const Choice& choice, chunks::ComposedRun run) {
  run.params = &choice.params;
  run.streaming = choice.followers > 0;
  run.followers = choice.followers;
  run.follows = choice.index > 0;
  run.options.explain = run.options.explain && choice.index == 0;
  return run;
}

// Returns the chunks of a prompt in their order: system, contexts, query.
std::vector<ChunkContent> contents_of(const ChunkedPrompt& prompt, const CompositionSpec& how,
                                      const std::string& salt) {
  std::vector<ChunkContent> chunks;
  chunks.reserve(prompt.contexts.size() + 2);
  const auto add_content = [&](const Prompt& content, ChunkType type) {
    ChunkContent& chunk = chunks.emplace_back();
    chunk.content = well_formed(content);
    chunk.type = type;
    chunk.options.salt = salt;
  };
  if (prompt.system) {
    add_content(*prompt.system, ChunkType::kSystemPrompt);
  }
  for (const Prompt& context : prompt.contexts) {
    add_content(context, ChunkType::kContext);
    if (!prompt.system || is_independent(how)) {
      chunks.back().options.anchor = "";
    }
  }
  add_content(prompt.query, ChunkType::kQuery);
  return chunks;
}

// Does ChunkedLLM::generate; `taken` gets what was registered and computed, also when it fails
// later.
Result<RegisteredGeneration> generate_registered(
    const Service& service, const ChunkedPrompt& prompt, const CompositionSpec& how,
    chunks::ComposedRun run, chunks::TakenChunks& taken, const Interrupt& interrupted) {
  if (!prompt.system && !how.without_system) {
    return {ErrorCode::kInvalidComposition,
            "a composition has exactly one system chunk; give a system prompt, or say "
            "without_system"};
  }
  const SamplingParams& params = *run.params;
  SamplingParams one = params;
  one.n = 1;
  run.spec = &how;
  run.params = &one;
  QUIRE_TRY_STATUS(params.validate());
  QUIRE_TRY(const std::string salt, service->salt_of(run));
  std::vector<ChunkContent> chunks = contents_of(prompt, how, salt);
  QUIRE_TRY_STATUS(service->check(chunks, run));  // before a chunk is used, computed or evicted
  taken.registered.reserve(chunks.size());
  const auto add = [&](std::span<const ChunkContent> next) -> Result<std::vector<std::string>> {
    QUIRE_TRY(auto added,
              service->register_chunks(next, interrupted, {.counted = run.counted, .held = true}));
    std::ranges::move(added, std::back_inserter(taken.registered));  // all, before ids are copied
    std::vector<std::string> ids;
    std::ranges::transform(std::span(taken.registered).last(added.size()), std::back_inserter(ids),
                           &chunks::RegisteredChunk::id);
    return ids;
  };
  CompositionSpec spec = how;
  spec.system_chunk_id.clear();
  auto rest = std::span(chunks);
  if (prompt.system) {
    QUIRE_TRY(auto ids, add(rest.first(1)));
    spec.system_chunk_id = std::move(ids.front());
    rest = rest.subspan(1);
  }
  for (ChunkContent& context : rest.first(prompt.contexts.size())) {
    context.options.anchor = is_independent(spec) ? "" : spec.system_chunk_id;
  }
  QUIRE_TRY(spec.context_chunk_ids, add(rest));
  spec.query_chunk_id = std::move(spec.context_chunk_ids.back());
  spec.context_chunk_ids.pop_back();
  run.spec = &spec;
  const auto submit = [&](std::span<const Choice> choices) {
    std::vector<chunks::ComposedRun> runs;
    runs.reserve(choices.size());
    std::ranges::transform(choices, std::back_inserter(runs),
                           [&](const Choice& choice) { return run_of(choice, run); });
    return service->submit(runs, interrupted, &taken.computed);
  };
  QUIRE_TRY(auto outputs,
            run_choices(service.runtime->engine(), 1, {&params, 1}, submit, interrupted));
  return RegisteredGeneration{.output = std::move(outputs.front()),
                              .system_id = spec.system_chunk_id,
                              .query_id = spec.query_chunk_id,
                              .context_ids = spec.context_chunk_ids};
}

// Does ChunkedLLM::explain of a composition some of whose chunks have gone.
std::vector<ReusePart> explain_lost(const Service& service, const CompositionSpec& spec) {
  std::vector<std::string> ids = spec.context_chunk_ids;
  ids.insert(ids.begin(), spec.system_chunk_id);
  ids.push_back(spec.query_chunk_id);
  std::vector<ReusePart> parts;
  for (const std::string& id : ids) {
    if (id.empty()) {
      continue;
    }
    const Result<ChunkInfo> chunk = service->get(id, spec.salt);
    if (!chunk.ok()) {
      parts.push_back({.chunk_id = id, .reason = chunk.error().message});
      continue;
    }
    const bool hit = chunk->num_variants > 0;
    const char* why_not =
        chunk->type == ChunkType::kQuery ? chunks::kQueryIsComputed : chunks::kNotComputedYet;
    parts.push_back({.chunk_type = std::string(chunk_type_name(chunk->type)),
                     .chunk_id = id,
                     .tokens = std::ssize(chunk->token_ids),
                     .hit = hit,
                     .reason = hit ? "hit" : why_not,
                     .kv_dtype = chunk->kv_dtype});
  }
  return parts;
}

}  // namespace

Status ChunkCacheOptions::validate() const try {
  if (max_chunks < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("max_chunks is ", max_chunks, "; give at least 1")};
  }
  if (!(chunk_memory_ratio > 0 && chunk_memory_ratio <= 1)) {
    return {ErrorCode::kInvalidArgument, base::str_cat("chunk_memory_ratio is ", chunk_memory_ratio,
                                                       "; give more than 0 and at most 1")};
  }
  if (max_store_bytes < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("max_store_bytes is ", max_store_bytes, "; give bytes, 0 for no limit")};
  }
  return engine::SessionService::check_salt("salt", salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Composition::Composition(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
const CompositionSpec& Composition::spec() const { return impl_->spec; }
const CompositionInfo& Composition::info() const { return impl_->info; }

ChunkedLLM::ChunkedLLM(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChunkedLLM::ChunkedLLM(ChunkedLLM&&) noexcept = default;
ChunkedLLM& ChunkedLLM::operator=(ChunkedLLM&&) noexcept = default;
ChunkedLLM::~ChunkedLLM() = default;

Result<ChunkedLLM> ChunkedLLM::open(const std::string& model, const LLMOptions& options,
                                    const ChunkCacheOptions& chunks) try {
  QUIRE_TRY_STATUS(options.validate());
  QUIRE_TRY_STATUS(chunks.validate());
  engine::EngineOptions engine_options = engine::to_engine_options(options);
  engine_options.chunks = chunks;
  QUIRE_TRY(auto runtime, runtime::Runtime::start(model, engine_options));
  // Here, not in the first registration.
  [[maybe_unused]] const auto& setup = runtime->chunks().core().setup();
  [[maybe_unused]] const auto& digest = runtime->engine().model_digest();
  auto llm = std::make_shared<LLM::Impl>();
  llm->runtime = std::move(runtime);
  return ChunkedLLM(std::make_unique<Impl>(Impl{LLM(std::move(llm))}));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

ChunkedLLM ChunkedLLM::over(const LLM& llm) {
  return ChunkedLLM(std::make_unique<Impl>(Impl{LLM(llm.shared_impl(), false)}));
}

LLM& ChunkedLLM::llm() { return impl_->llm; }

Result<std::string> ChunkedLLM::register_chunk(const ChunkContent& chunk,
                                               const Interrupt& interrupted) try {
  QUIRE_TRY(auto ids, register_chunks({&chunk, 1}, interrupted));
  return std::move(ids.front());
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<std::string>> ChunkedLLM::register_chunks(std::span<const ChunkContent> chunks,
                                                             const Interrupt& interrupted) try {
  std::vector<std::string> ids;
  ids.reserve(chunks.size());  // before there are chunks that a refusal would leave behind
  QUIRE_TRY(auto registered, register_with_details(chunks, interrupted));
  for (RegisteredChunk& chunk : registered) {
    ids.push_back(std::move(chunk.chunk_id));
  }
  return ids;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<RegisteredChunk>> ChunkedLLM::register_with_details(
    std::span<const ChunkContent> chunks, const Interrupt& interrupted,
    const ChunkProgress& progress) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  std::vector<ChunkContent>
      repaired;  // contents where some are ill-formed. Texts that are there are hashed and
                 // compared, and a copy would cost more than that
  if (!std::ranges::all_of(chunks, &is_well_formed, &ChunkContent::content)) {
    repaired.reserve(chunks.size());
    for (const ChunkContent& chunk : chunks) {
      ChunkContent& next = repaired.emplace_back();
      next.content = well_formed(chunk.content);
      next.type = chunk.type;
      next.options = chunk.options;
    }
    chunks = repaired;
  }
  std::vector<RegisteredChunk> details;
  details.reserve(chunks.size());  // before there are chunks that a refusal would leave behind
  QUIRE_TRY(auto registered, service->register_chunks(chunks, interrupted, {.progress = progress}));
  for (chunks::RegisteredChunk& chunk : registered) {
    details.push_back({.chunk_id = std::move(chunk.id),
                       .created = chunk.created,
                       .tokens_computed = chunk.tokens_computed});
  }
  return details;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ChunkInfo> ChunkedLLM::get_chunk(const std::string& chunk_id, const std::string& salt) const
    try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->get(chunk_id, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<ChunkInfo>> ChunkedLLM::list_chunks(std::optional<ChunkType> type,
                                                       std::string_view metadata_filter_json,
                                                       const std::string& salt) const try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->list(type, metadata_filter_json, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ChunkInfo> ChunkedLLM::update_chunk(const std::string& chunk_id, const ChunkUpdate& update,
                                           const std::string& salt) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->update(chunk_id, update, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<bool> ChunkedLLM::delete_chunk(const std::string& chunk_id, bool wipe,
                                      const std::string& salt) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->remove(chunk_id, wipe, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::int64_t> ChunkedLLM::clear_chunks(std::optional<ChunkType> type,
                                              const std::string& salt) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->clear(type, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::int64_t> ChunkedLLM::evict_unused_chunks(double max_age_seconds,
                                                     const std::string& salt) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->evict_unused(max_age_seconds, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::int64_t> ChunkedLLM::coalesce() try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->coalesce();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ChunkStats> ChunkedLLM::chunk_stats(const std::string& salt) const try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->stats(salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ChunkStats> ChunkedLLM::chunk_totals() const try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->totals();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ChunkedLLM::flush_store() try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  return service->library().writes().flush();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Composition> ChunkedLLM::compose(const CompositionSpec& spec) const try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  QUIRE_TRY(auto info, service->preview(spec));
  return Composition(
      std::make_shared<const Composition::Impl>(Composition::Impl{spec, std::move(info)}));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<CompositionInfo> ChunkedLLM::preview_composition(const CompositionSpec& spec) const try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  QUIRE_TRY(auto info, service->preview(spec));
  info.retokenizes_alike = service->retokenizes_alike(info);
  return info;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<GenerationOutput> ChunkedLLM::generate_from_chunks(const CompositionSpec& spec,
                                                          const SamplingParams& params,
                                                          const Interrupt& interrupted,
                                                          const RequestOptions& options) try {
  QUIRE_TRY(auto outputs,
            batch_generate_from_chunks({&spec, 1}, {&params, 1}, interrupted, {&options, 1}));
  return std::move(outputs.front());
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<GenerationOutput>> ChunkedLLM::batch_generate_from_chunks(
    std::span<const CompositionSpec> specs, std::span<const SamplingParams> params,
    const Interrupt& interrupted, std::span<const RequestOptions> options) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  QUIRE_TRY_STATUS(check_counts(specs.size(), params.size(), options.size(), "request"));
  const engine::Clock::time_point submitted = engine::Clock::now();
  const engine::CallDeadline deadline(options, interrupted);
  const auto submit = [&](std::span<const Choice> choices) {
    std::vector<chunks::ComposedRun> runs;
    runs.reserve(choices.size());
    for (const Choice& choice : choices) {
      runs.push_back(run_of(choice, {.spec = &specs[choice.prompt],
                                     .options = options_of(options, choice.prompt),
                                     .submitted = submitted}));
    }
    return deadline.ended(service->submit(runs, deadline.interrupt()));
  };
  return run_choices(service.runtime->engine(), specs.size(), params, submit, interrupted);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Stream> ChunkedLLM::stream_from_chunks(const CompositionSpec& spec,
                                              const SamplingParams& params,
                                              const Interrupt& interrupted,
                                              const RequestOptions& options) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  const chunks::ComposedRun run{.spec = &spec,
                                .params = &params,
                                .streaming = options.deltas,
                                .options = options,
                                .followers = options.followers,
                                .follows = options.follows};
  const engine::CallDeadline deadline({&options, 1}, interrupted);
  QUIRE_TRY(const auto channels, deadline.ended(service->submit({&run, 1}, deadline.interrupt())));
  auto stream = std::make_unique<Stream::Impl>();
  stream->engine = engine_of(service.runtime);
  stream->channel = channels.front();
  stream->waits = !options.notify;
  return Stream(std::move(stream));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<RegisteredGeneration> ChunkedLLM::generate(const ChunkedPrompt& prompt,
                                                  const CompositionSpec& how,
                                                  const SamplingParams& params, bool persist_chunks,
                                                  const Interrupt& interrupted,
                                                  const RequestOptions& options) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  chunks::TakenChunks taken;
  const engine::CallDeadline deadline({&options, 1}, interrupted);
  const auto generate_now = [&]() -> Result<RegisteredGeneration> {
    try {
      return generate_registered(service, prompt, how,
                                 {.params = &params, .counted = persist_chunks, .options = options},
                                 taken, deadline.interrupt());
    } catch (const std::bad_alloc&) {
      return base::no_memory("the call");
    }
  };
  auto generation = deadline.ended(generate_now());
  if (generation.ok() && persist_chunks) {
    service->release(std::move(taken.registered));
  } else {
    service->withdraw(std::move(taken));
  }
  if (!generation.ok() && generation.error().code == ErrorCode::kNotFound) {
    return {ErrorCode::kOutOfBlocks,
            "the request's chunks did not stay until it began: other calls took their room, or "
            "deleted them; ask again, or raise chunk_memory_ratio, max_chunks or kv_budget"};
  }
  return generation;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ForwardOutput> ChunkedLLM::logits_from_chunks(const CompositionSpec& spec,
                                                     const Interrupt& interrupted) try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  const chunks::ComposedRun run{.spec = &spec, .kind = RequestKind::kForwardAll};
  QUIRE_TRY(const auto channels, service->submit({&run, 1}, interrupted));
  QUIRE_TRY_STATUS(await(service.runtime->engine(), channels, interrupted));
  return channels.front()->take_forward();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<BlockList> ChunkedLLM::chunk_blocks(const std::string& chunk_id,
                                           const std::string& salt) const try {
  QUIRE_TRY(const auto runtime, impl_->llm.impl().open());
  QUIRE_TRY(auto run, runtime->sequences().runs().chunk_run(chunk_id, salt));
  return make_block_list({std::move(run)});
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Sequence> ChunkedLLM::sequence(const CompositionSpec& spec, const Interrupt& interrupted,
                                      const RequestOptions& options) try {
  QUIRE_TRY(const auto runtime, impl_->llm.impl().open());
  QUIRE_TRY(auto state, runtime->sequences().open(spec, interrupted, options));
  return make_sequence(impl_->llm.shared_impl(), std::move(state));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<ReusePart>> ChunkedLLM::explain(const CompositionSpec& spec) const try {
  QUIRE_TRY(const Service service, service_of(impl_->llm));
  const Result<CompositionInfo> info = service->preview(spec);
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) {
    return explain_lost(service, spec);
  }
  if (!info.ok()) {
    return info.error();
  }
  return chunks::parts_of(*info);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

}  // namespace quire
