#include "quire/store.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "errors.h"
#include "names.h"
#include "outputs.h"
#include "paths.h"
#include "quire/checkpoints.h"
#include "quire/llm.h"
#include "quire/sequence.h"
#include "store.h"
#include "text.h"
#include "waiting.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

nb::dict describe(const StoreEntry& entry) {
  nb::dict dict;
  dict["key"] = entry.key;
  dict["kind"] = entry.kind;
  dict["name"] = to_text(entry.name);
  dict["tenant"] = to_text(entry.tenant);
  dict["metadata"] = entry.metadata_json;
  dict["tokens"] = entry.tokens;
  dict["bytes"] = entry.bytes;
  dict["ratio"] = entry.ratio > 0 ? nb::cast(entry.ratio) : nb::none();
  dict["created_at"] = entry.created_at;
  dict["accessed_at"] = entry.accessed_at;
  dict["expires_at"] = or_none(entry.expires_at);
  dict["pinned"] = entry.pinned;
  return dict;
}

nb::dict describe(const StoreObject& object) {
  nb::dict dict;
  dict["hash"] = object.hash;
  dict["state"] = object.state;
  dict["bytes"] = object.bytes;
  dict["entries"] = object.entries;
  dict["message"] = to_text(object.message);
  return dict;
}

nb::dict describe(const StoreWeights& weights) {
  nb::dict dict;
  dict["key"] = weights.key;
  dict["model"] = to_text(weights.model);
  dict["state"] = weights.state;
  dict["written_at"] = weights.written_at;
  dict["bytes"] = weights.bytes;
  dict["message"] = to_text(weights.message);
  return dict;
}

nb::dict describe(const StoreCleaning& cleaning) {
  nb::dict dict;
  dict["expired_entries"] = cleaning.expired_entries;
  dict["evicted_entries"] = cleaning.evicted_entries;
  dict["removed_objects"] = cleaning.removed_objects;
  dict["removed_bytes"] = cleaning.removed_bytes;
  dict["removed_temporaries"] = cleaning.removed_temporaries;
  dict["removed_weights"] = cleaning.removed_weights;
  dict["removed_weight_bytes"] = cleaning.removed_weight_bytes;
  dict["objects"] = cleaning.objects;
  dict["bytes"] = cleaning.bytes;
  dict["kept_objects"] = cleaning.kept_objects;
  dict["message"] = to_text(cleaning.message);
  return dict;
}

nb::dict describe(const CheckpointInfo& info) {
  nb::dict sequences;
  for (const CheckpointInfo::SequenceInfo& sequence : info.sequences) {
    sequences[to_text(sequence.name)] = sequence.tokens;
  }
  nb::dict dict;
  dict["name"] = to_text(info.name);
  dict["number"] = info.number;
  dict["created_at"] = info.created_at;
  dict["pinned"] = info.pinned;
  dict["sequences"] = sequences;
  dict["bytes"] = info.bytes;
  dict["written_bytes"] = info.written_bytes;
  dict["written_objects"] = info.written_objects;
  return dict;
}

template <class T>
nb::list describe_all(const std::vector<T>& values) {
  nb::list list;
  for (const T& value : values) {
    list.append(describe(value));
  }
  return list;
}

Store open_store(const nb::bytes& path, bool read_only, bool create, std::int64_t max_bytes,
                 const std::optional<std::string>& tenant) {
  const StoreOptions options{
      .read_only = read_only, .create = create, .max_bytes = max_bytes, .tenant = tenant};
  const std::string folder = to_path(path);
  return unwrap(without_gil([&] { return Store::open(folder, options); }));
}

void bind_store(nb::module_& module) {
  nb::class_<Store>(module, "Store")
      .def_static("open", &open_store, nb::arg("path"), nb::arg("read_only"), nb::arg("create"),
                  nb::arg("max_bytes"), nb::arg("tenant").none())
      .def_static("repair",
                  [](const nb::bytes& path, bool force) {
                    const std::string folder = to_path(path);
                    return unwrap(without_gil([&] { return Store::repair(folder, force); }));
                  })
      .def("list",
           [](const Store& store) {
             return describe_all(unwrap(without_gil([&] { return store.list(); })));
           })
      .def("find",
           [](const Store& store, const std::string& entry) {
             return describe(unwrap(without_gil([&] { return store.find(entry); })));
           })
      .def("pin",
           [](Store& store, const std::string& entry, bool pinned) {
             unwrap(without_gil([&] { return store.pin(entry, pinned); }));
           })
      .def(
          "set_ttl",
          [](Store& store, const std::string& entry, std::optional<double> seconds) {
            unwrap(without_gil([&] { return store.set_ttl(entry, seconds); }));
          },
          nb::arg("entry"), nb::arg("seconds").none())
      .def("remove",
           [](Store& store, const std::string& entry, bool wipe) {
             unwrap(without_gil([&] { return store.remove(entry, wipe); }));
           })
      .def("gc",
           [](Store& store) { return describe(unwrap(without_gil([&] { return store.gc(); }))); })
      .def("verify",
           [](const Store& store) {
             return describe_all(unwrap(without_gil([&] { return store.verify(); })));
           })
      .def("weights",
           [](const Store& store, bool verify) {
             return describe_all(unwrap(without_gil([&] { return store.weights(verify); })));
           })
      .def("export_entry",
           [](const Store& store, const std::string& entry, const nb::bytes& path) {
             const std::string file = to_path(path);
             unwrap(without_gil([&] { return store.export_entry(entry, file); }));
           })
      .def("import_entry", [](Store& store, const nb::bytes& path) {
        const std::string file = to_path(path);
        return describe(unwrap(without_gil([&] { return store.import_entry(file); })));
      });
}

std::vector<NamedSequence> named(const std::vector<std::string>& names,
                                 const std::vector<const Sequence*>& sequences) {
  std::vector<NamedSequence> given;
  given.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    given.push_back({names[i], sequences[i]});
  }
  return given;
}

using Names = std::vector<std::string>;
using Sequences = std::vector<const Sequence*>;

void bind_saving(nb::class_<CheckpointManager>& manager) {
  manager
      .def("save",
           [](CheckpointManager& manager, const Names& names, const Sequences& sequences,
              const std::string& name) {
             const auto given = named(names, sequences);
             return describe(unwrap(without_gil([&] { return manager.save(given, name); })));
           })
      .def("maybe_save",
           [](CheckpointManager& manager, const Names& names,
              const Sequences& sequences) -> std::optional<nb::dict> {
             const auto given = named(names, sequences);
             const auto saved = unwrap(without_gil([&] { return manager.maybe_save(given); }));
             return saved ? std::optional(describe(*saved)) : std::nullopt;
           })
      .def("load",
           [](CheckpointManager& manager, const std::string& name, const Names& only, bool wait) {
             auto loaded =
                 unwrap(without_gil([&] { return manager.load(name, only, {.wait = wait}); }));
             nb::dict dict;
             for (LoadedSequence& sequence : loaded) {
               dict[to_text(sequence.name)] = std::move(sequence.sequence);
             }
             return dict;
           })
      .def("compact", [](CheckpointManager& manager, const std::string& name) {
        return describe(unwrap(without_gil([&] { return manager.compact(name); })));
      });
}

void bind_checkpoints(nb::module_& module) {
  nb::class_<CheckpointOptions>(module, "CheckpointOptions")
      .def(nb::init<>())
      .def_rw("series", &CheckpointOptions::series)
      .def_rw("tenant", &CheckpointOptions::tenant)
      .def_rw("keep", &CheckpointOptions::keep)
      .def_rw("every", &CheckpointOptions::every_tokens)
      .def_rw("every_seconds", &CheckpointOptions::every_seconds)
      .def_rw("max_bytes", &CheckpointOptions::max_bytes)
      .def_prop_rw(
          "compress",
          [](const CheckpointOptions& options) { return compression_name(options.compress); },
          [](CheckpointOptions& options, const std::string& name) {
            options.compress = to_compression(name);
          });
  nb::class_<CheckpointManager> manager(module, "CheckpointManager");
  manager
      .def_static(
          "open",
          [](const LLM& llm, const nb::bytes& folder, const CheckpointOptions& options) {
            const std::string path = to_path(folder);
            return unwrap(without_gil([&] { return CheckpointManager::open(llm, path, options); }));
          })
      .def("list",
           [](const CheckpointManager& manager) {
             return describe_all(unwrap(without_gil([&] { return manager.list(); })));
           })
      .def("latest",
           [](const CheckpointManager& manager) {
             return describe(unwrap(without_gil([&] { return manager.latest(); })));
           })
      .def("remove",
           [](CheckpointManager& manager, const std::string& name) {
             return unwrap(without_gil([&] { return manager.remove(name); }));
           })
      .def("cleanup", [](CheckpointManager& manager, std::int64_t keep) {
        return unwrap(without_gil([&] { return manager.cleanup(keep); }));
      });
  bind_saving(manager);
}

}  // namespace

void bind_stores(nb::module_& module) {
  bind_store(module);
  bind_checkpoints(module);
}

}  // namespace quire::python
