#include "chunks.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "errors.h"
#include "names.h"
#include "outputs.h"
#include "params.h"
#include "paths.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "waiting.h"
#include "wakeups.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

using python::to_dict;  // those of outputs.h, beside those below
using python::to_list;

ChunkType to_type(const std::string& name) {
  return by_name(name, "chunk_type", &chunk_type_name,
                 {ChunkType::kSystemPrompt, ChunkType::kContext, ChunkType::kQuery});
}

ReuseMode to_mode(const std::string& name) {
  return by_name(
      name, "mode", &reuse_mode_name,
      {ReuseMode::kExact, ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kBlend});
}

ReuseMode to_base(const std::string& name) {
  return by_name(name, "base", &reuse_mode_name, {ReuseMode::kAnchored, ReuseMode::kIndependent});
}

Selector to_selector(const std::string& name) {
  return by_name(name, "selector", &selector_name,
                 {Selector::kQueryAttention, Selector::kValueDeviation, Selector::kFirst,
                  Selector::kRandom, Selector::kAll, Selector::kNone, Selector::kExplicit});
}

std::optional<ChunkType> to_type(const std::optional<std::string>& name) {
  return name ? std::optional(to_type(*name)) : std::nullopt;
}

nb::object describe(const std::optional<KVError>& error) {
  if (!error) {
    return nb::none();
  }
  nb::dict dict;
  dict["key"] = error->key;
  dict["value"] = error->value;
  dict["bits_per_value"] = error->bits_per_value;
  return dict;
}

// Returns None, the id of a system chunk, or a list of ids.
nb::object describe_anchor(const std::string& anchor) {
  const std::vector<std::string_view> ids = anchor_ids(anchor);
  return ids.size() > 1 ? nb::cast(ids) : nb::object(or_none(anchor));
}

nb::dict describe(const ChunkInfo& chunk) {
  nb::dict dict;
  dict["chunk_id"] = chunk.chunk_id;
  dict["chunk_type"] = chunk_type_name(chunk.type);
  dict["content"] = chunk.content;
  dict["token_count"] = chunk.token_ids.size();
  dict["token_ids"] = chunk.token_ids;
  dict["metadata"] = chunk.metadata_json;
  dict["created_at"] = chunk.created_at;
  dict["last_accessed"] = chunk.last_accessed;
  dict["access_count"] = chunk.access_count;
  dict["ttl_seconds"] = chunk.ttl_seconds;
  dict["pinned"] = chunk.pinned;
  dict["priority"] = chunk.priority;
  dict["anchor"] = describe_anchor(chunk.anchor);
  dict["num_variants"] = chunk.num_variants;
  dict["memory_bytes"] = chunk.memory_bytes;
  dict["kv_dtype"] = chunk.kv_dtype;
  dict["kv_error"] = describe(chunk.kv_error);
  dict["keep_hidden"] = chunk.keep_hidden;
  dict["saved"] = chunk.saved;
  return dict;
}

nb::dict describe(const ChunkStats& stats) {
  nb::dict dict;
  dict["total_chunks"] = stats.total_chunks;
  dict["system_chunks"] = stats.system_chunks;
  dict["context_chunks"] = stats.context_chunks;
  dict["query_chunks"] = stats.query_chunks;
  dict["memory_used_bytes"] = stats.memory_used_bytes;
  dict["memory_limit_bytes"] = stats.memory_limit_bytes;
  dict["cache_hits"] = stats.cache_hits;
  dict["cache_misses"] = stats.cache_misses;
  dict["evictions"] = stats.evictions;
  return dict;
}

nb::dict describe(const CompositionInfo& info) {
  nb::list segments;
  for (const CompositionInfo::Segment& segment : info.segments) {
    nb::dict dict;
    dict["chunk_id"] = segment.chunk_id;
    dict["chunk_type"] = chunk_type_name(segment.type);
    dict["num_tokens"] = segment.num_tokens;
    dict["position"] = segment.position;
    dict["kv_dtype"] = segment.kv_dtype;
    dict["cached"] = segment.cached;
    dict["why_not"] = or_none(segment.why_not);
    segments.append(dict);
  }
  nb::dict dict;
  dict["segments"] = segments;
  dict["mode"] = reuse_mode_name(info.mode);
  dict["grade"] = reuse_grade_name(info.grade);
  dict["total_tokens"] = info.total_tokens;
  dict["tokens_reused"] = info.tokens_reused;
  dict["tokens_computed"] = info.tokens_computed;
  dict["num_levels"] = info.num_levels;
  dict["num_blocks"] = info.num_blocks;
  dict["new_blocks"] = info.new_blocks;
  dict["memory_bytes"] = info.memory_bytes;
  return dict;
}

nb::list register_chunks(ChunkedLLM& llm, const std::vector<ChunkContent>& chunks,
                         const nb::object& progress) {
  const ChunkProgress report = progress_to(progress);
  const auto registered =
      unwrap(without_gil([&] { return llm.register_with_details(chunks, &interrupted, report); }));
  if (PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return list_of(registered, [](const RegisteredChunk& chunk) {
    nb::dict dict;
    dict["chunk_id"] = chunk.chunk_id;
    dict["created"] = chunk.created;
    dict["tokens_computed"] = chunk.tokens_computed;
    return dict;
  });
}

// System, contexts, query.
using Texts = std::tuple<std::optional<Prompt>, std::vector<Prompt>, Prompt>;

nb::dict generate(ChunkedLLM& llm, const Texts& texts, const CompositionSpec& how,
                  const nb::object& params, bool persist_chunks, const RequestOptions& options) {
  const SamplingParams sampling = to_params(params);
  const ChunkedPrompt prompt{
      .system = std::get<0>(texts), .contexts = std::get<1>(texts), .query = std::get<2>(texts)};
  const RegisteredGeneration generation = unwrap(without_gil(
      [&] { return llm.generate(prompt, how, sampling, persist_chunks, &interrupted, options); }));
  nb::dict ids;
  ids["system"] = or_none(generation.system_id);
  ids["context"] = generation.context_ids;
  ids["query"] = generation.query_id;
  nb::dict dict = to_dict(generation.output);
  dict["chunk_ids"] = ids;
  return dict;
}

nb::list generate_from_chunks(ChunkedLLM& llm, const std::vector<CompositionSpec>& specs,
                              const nb::list& params, const std::vector<RequestOptions>& options) {
  const auto list = to_params_list(params);
  auto outputs = without_gil(
      [&] { return llm.batch_generate_from_chunks(specs, list, &interrupted, options); });
  nb::list result;
  for (const GenerationOutput& output : unwrap(std::move(outputs))) {
    result.append(to_dict(output));
  }
  return result;
}

void bind_values(nb::module_& module) {
  nb::class_<ChunkCacheOptions>(module, "ChunkCacheOptions")
      .def(nb::init<>())
      .def_rw("max_chunks", &ChunkCacheOptions::max_chunks)
      .def_rw("chunk_memory_ratio", &ChunkCacheOptions::chunk_memory_ratio)
      .def_rw("enable_deduplication", &ChunkCacheOptions::enable_deduplication)
      .def_rw("salt", &ChunkCacheOptions::salt)
      .def_prop_rw(
          "store",
          [](const ChunkCacheOptions& options) {
            return nb::bytes(options.store.data(), options.store.size());
          },
          [](ChunkCacheOptions& options, const nb::bytes& path) { options.store = to_path(path); })
      .def_rw("max_store_bytes", &ChunkCacheOptions::max_store_bytes)
      .def_prop_rw(
          "compress_store",
          [](const ChunkCacheOptions& options) { return compression_name(options.compress_store); },
          [](ChunkCacheOptions& options, const std::string& name) {
            options.compress_store = to_compression(name);
          })
      .def_rw("write_through", &ChunkCacheOptions::write_through)
      .def("set_format", [](ChunkCacheOptions& options, const std::vector<std::string>& affixes) {
        options.chunk_format =
            ChunkFormat{.system = {.prefix = affixes.at(0), .suffix = affixes.at(1)},
                        .context = {.prefix = affixes.at(2), .suffix = affixes.at(3)},
                        .query = {.prefix = affixes.at(4), .suffix = affixes.at(5)}};
      });

  nb::class_<ChunkOptions>(module, "ChunkOptions")
      .def(nb::init<>())
      .def_rw("metadata", &ChunkOptions::metadata_json)
      .def_rw("ttl_seconds", &ChunkOptions::ttl_seconds, nb::arg().none())
      .def_rw("pinned", &ChunkOptions::pinned)
      .def_rw("priority", &ChunkOptions::priority)
      .def_rw("anchor", &ChunkOptions::anchor, nb::arg().none())
      .def_rw("salt", &ChunkOptions::salt)
      .def_rw("kv_dtype", &ChunkOptions::kv_dtype)
      .def_rw("keep_hidden", &ChunkOptions::keep_hidden, nb::arg().none());

  nb::class_<ChunkContent>(module, "ChunkContent")
      .def("__init__", [](ChunkContent* self, Prompt content, const std::string& type,
                          const ChunkOptions& options) {
        new (self)
            ChunkContent{.content = std::move(content), .type = to_type(type), .options = options};
      });

  nb::class_<ChunkUpdate>(module, "ChunkUpdate")
      .def(nb::init<>())
      .def_rw("metadata", &ChunkUpdate::metadata_json)
      .def_prop_rw(
          "ttl_seconds",
          [](const ChunkUpdate& update) { return update.ttl_seconds.value_or(std::nullopt); },
          [](ChunkUpdate& update, std::optional<double> seconds) { update.ttl_seconds = seconds; },
          nb::for_setter(nb::arg("seconds").none()))
      .def_rw("pinned", &ChunkUpdate::pinned)
      .def_rw("priority", &ChunkUpdate::priority)
      .def_rw("kv_dtype", &ChunkUpdate::kv_dtype);
}

void bind_composition(nb::module_& module) {
  nb::class_<CompositionSpec>(module, "CompositionSpec")
      .def(nb::init<>())
      .def_rw("salt", &CompositionSpec::salt)
      .def_rw("system_chunk_id", &CompositionSpec::system_chunk_id)
      .def_rw("without_system", &CompositionSpec::without_system)
      .def_rw("context_chunk_ids", &CompositionSpec::context_chunk_ids)
      .def_rw("query_chunk_id", &CompositionSpec::query_chunk_id)
      .def_rw("computed_in_place", &CompositionSpec::computed_in_place)
      .def_rw("bos_sink", &CompositionSpec::bos_sink)
      .def("set_mode", [](CompositionSpec& s, const std::string& name) { s.mode = to_mode(name); })
      .def("set_parallel", [](CompositionSpec& s) { s.positions = Positions::kParallel; })
      .def("set_starts",
           [](CompositionSpec& s, std::vector<std::int32_t> starts) {
             s.positions = Positions::kFixed;
             s.fixed = std::move(starts);
           })
      .def_rw("blend", &CompositionSpec::blend);

  nb::class_<Blend>(module, "Blend")
      .def(nb::init<>())
      .def("set_selector",
           [](Blend& b, const std::string& name) { b.selector = to_selector(name); })
      .def("set_base", [](Blend& b, const std::string& name) { b.base = to_base(name); })
      .def_rw("share", &Blend::share)
      .def_rw("tokens", &Blend::tokens)
      .def_rw("seed", &Blend::seed)
      .def("set_layers",
           [](Blend& b, std::int32_t first, std::int32_t last) {
             b.layers = LayerRange{.first = first, .last = last};
           })
      .def("set_only_layer", [](Blend& b, std::int32_t layer) { b.only_layer = layer; });

  nb::class_<Composition>(module, "Composition")
      .def("spec", &Composition::spec, nb::rv_policy::copy)
      .def("info", [](const Composition& composition) { return describe(composition.info()); })
      .def("token_ids", [](const Composition& made) { return made.info().token_ids(); });
}

void bind_registry(nb::class_<ChunkedLLM>& llm) {
  llm.def("register_chunks", &register_chunks, nb::arg("chunks"), nb::arg("progress").none())
      .def("get_chunk",
           [](const ChunkedLLM& llm, const std::string& id, const std::string& salt) {
             return describe(unwrap(without_gil([&] { return llm.get_chunk(id, salt); })));
           })
      .def(
          "list_chunks",
          [](const ChunkedLLM& llm, const std::optional<std::string>& type,
             const std::string& filter, const std::string& salt) {
            const auto wanted = to_type(type);
            nb::list list;
            for (const ChunkInfo& chunk :
                 unwrap(without_gil([&] { return llm.list_chunks(wanted, filter, salt); }))) {
              list.append(describe(chunk));
            }
            return list;
          },
          nb::arg().none(), nb::arg(), nb::arg())
      .def("update_chunk",
           [](ChunkedLLM& llm, const std::string& id, const ChunkUpdate& update,
              const std::string& salt) {
             return describe(
                 unwrap(without_gil([&] { return llm.update_chunk(id, update, salt); })));
           })
      .def("delete_chunk",
           [](ChunkedLLM& llm, const std::string& id, bool wipe, const std::string& salt) {
             return unwrap(without_gil([&] { return llm.delete_chunk(id, wipe, salt); }));
           })
      .def(
          "clear_chunks",
          [](ChunkedLLM& llm, const std::optional<std::string>& type, const std::string& salt) {
            const auto wanted = to_type(type);
            return unwrap(without_gil([&] { return llm.clear_chunks(wanted, salt); }));
          },
          nb::arg().none(), nb::arg())
      .def("evict_unused_chunks",
           [](ChunkedLLM& llm, double seconds, const std::string& salt) {
             return unwrap(without_gil([&] { return llm.evict_unused_chunks(seconds, salt); }));
           })
      .def("coalesce",
           [](ChunkedLLM& llm) { return unwrap(without_gil([&] { return llm.coalesce(); })); })
      .def("flush_store",
           [](ChunkedLLM& llm) { unwrap(without_gil([&] { return llm.flush_store(); })); })
      .def("chunk_stats", [](const ChunkedLLM& llm, const std::string& salt) {
        return describe(unwrap(without_gil([&] { return llm.chunk_stats(salt); })));
      });
}

void bind_composing(nb::class_<ChunkedLLM>& llm) {
  llm.def("compose",
          [](const ChunkedLLM& llm, const CompositionSpec& spec) {
            return unwrap(without_gil([&] { return llm.compose(spec); }));
          })
      .def("preview_composition",
           [](const ChunkedLLM& llm, const CompositionSpec& spec) {
             const CompositionInfo info =
                 unwrap(without_gil([&] { return llm.preview_composition(spec); }));
             nb::dict dict = describe(info);
             dict["token_ids"] = info.token_ids();
             dict["retokenizes_alike"] = info.retokenizes_alike;
             return dict;
           })
      .def("explain",
           [](const ChunkedLLM& llm, const CompositionSpec& spec) {
             return to_list(unwrap(without_gil([&] { return llm.explain(spec); })));
           })
      .def("generate", &generate, nb::arg("texts"), nb::arg("how"), nb::arg("params").none(),
           nb::arg("persist_chunks"), nb::arg("options"))
      .def("generate_from_chunks", &generate_from_chunks)
      .def(
          "stream_from_chunks",
          [](ChunkedLLM& llm, const CompositionSpec& spec, const nb::object& params,
             const RequestOptions& options) {
            const SamplingParams sampling = to_params(params);
            return unwrap(without_gil(
                [&] { return llm.stream_from_chunks(spec, sampling, &interrupted, options); }));
          },
          nb::arg("spec"), nb::arg("params").none(), nb::arg("options"))
      .def(
          "stream_from_chunks_until",
          [](ChunkedLLM& llm, const CompositionSpec& spec, const nb::object& params,
             const RequestOptions& options, const Halt& halt) {
            const SamplingParams sampling = to_params(params);
            const auto halted = [set = halt.set] { return set->load(); };
            return unwrap(without_gil(
                [&] { return llm.stream_from_chunks(spec, sampling, halted, options); }));
          },
          nb::arg("spec"), nb::arg("params").none(), nb::arg("options"), nb::arg("halt"))
      .def("logits_from_chunks",
           [](ChunkedLLM& llm, const CompositionSpec& spec) {
             return to_dict(
                 unwrap(without_gil([&] { return llm.logits_from_chunks(spec, &interrupted); })));
           })
      .def("chunk_blocks",
           [](const ChunkedLLM& llm, const std::string& id, const std::string& salt) {
             return unwrap(without_gil([&] { return llm.chunk_blocks(id, salt); }));
           })
      .def("sequence",
           [](ChunkedLLM& llm, const CompositionSpec& spec, const RequestOptions& options) {
             return unwrap(without_gil([&] { return llm.sequence(spec, &interrupted, options); }));
           });
}

ChunkedLLM open(const nb::bytes& model, LLMOptions options, const ChunkCacheOptions& chunks,
                const nb::object& progress) {
  set_progress(options, progress);
  const std::string path = to_path(model);
  return unwrap(without_gil([&] { return ChunkedLLM::open(path, options, chunks); }));
}

}  // namespace

void bind_chunks(nb::module_& module) {
  bind_values(module);
  bind_composition(module);
  nb::class_<ChunkedLLM> llm(module, "ChunkedLLM");
  llm.def_static("open", &open, nb::arg("model"), nb::arg("options"), nb::arg("chunks"),
                 nb::arg("progress").none())
      .def_static("over", &ChunkedLLM::over)
      .def_prop_ro("llm", &ChunkedLLM::llm, nb::rv_policy::reference_internal);
  bind_registry(llm);
  bind_composing(llm);
}

}  // namespace quire::python
