#include "context.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "errors.h"
#include "names.h"
#include "outputs.h"
#include "params.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/sampling.h"
#include "waiting.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

ContextManager open(const LLM& llm, const std::string& mode, const nb::bytes& store) {
  const ContextOptions options{
      .mode = by_name(mode, "mode", &reuse_mode_name, {ReuseMode::kAnchored, ReuseMode::kExact}),
      .store = std::string(store.c_str(), store.size())};
  return unwrap(without_gil([&] { return ContextManager::open(llm, options); }));
}

nb::dict describe(const ContextItem& item) {
  nb::dict dict;
  dict["id"] = item.id;
  dict["name"] = or_none(item.name);
  dict["kind"] = item_kind_name(item.kind);
  dict["tags"] = item.tags;
  dict["text"] = item.text;
  dict["token_ids"] = item.token_ids;
  dict["num_tokens"] = item.token_ids.size();
  dict["active"] = item.active;
  dict["status"] = item.active ? "active" : "inactive";
  dict["tier"] = tier_name(item.tier);
  dict["saved"] = item.saved;
  dict["parents"] = item.parents;
  dict["sampling"] = or_none(item.sampling_json);
  dict["memory_bytes"] = item.memory_bytes;
  return dict;
}

nb::dict describe(const ContextStats& stats) {
  nb::dict dict;
  dict["items"] = stats.items;
  dict["active_items"] = stats.active_items;
  dict["active_tokens"] = stats.active_tokens;
  dict["device_items"] = stats.device_items;
  dict["host_items"] = stats.host_items;
  dict["disk_items"] = stats.disk_items;
  dict["device_bytes"] = stats.device_bytes;
  dict["host_bytes"] = stats.host_bytes;
  dict["saved_items"] = stats.saved_items;
  dict["tokens_computed"] = stats.tokens_computed;
  dict["tokens_reused"] = stats.tokens_reused;
  return dict;
}

std::string add(ContextManager& context, const Prompt& content, const std::string& name,
                const std::vector<std::string>& tags, const std::string& kind, bool active) {
  const ItemOptions options{
      .name = name,
      .tags = tags,
      .kind = by_name(kind, "kind", &item_kind_name, {ItemKind::kSystem, ItemKind::kContext}),
      .active = active};
  return unwrap(without_gil([&] { return context.add(content, options, &interrupted); }));
}

nb::dict infer(ContextManager& context, const std::optional<std::string>& text,
               const nb::object& params) {
  const SamplingParams sampling = to_params(params);
  const ContextManager::Answer answer =
      unwrap(without_gil([&] { return context.infer(text, sampling, &interrupted); }));
  nb::dict dict = to_dict(answer.output);
  dict["user_id"] = or_none(answer.user_id);
  dict["output_id"] = answer.output_id;
  return dict;
}

void bind_items(nb::class_<ContextManager>& context) {
  context.def("add", &add)
      .def("activate",
           [](ContextManager& context, const std::string& item) {
             unwrap(without_gil([&] { return context.activate(item); }));
           })
      .def("deactivate",
           [](ContextManager& context, const std::string& item) {
             unwrap(without_gil([&] { return context.deactivate(item); }));
           })
      .def("tag",
           [](ContextManager& context, const std::string& item, const std::string& tag) {
             unwrap(without_gil([&] { return context.tag(item, tag); }));
           })
      .def("show",
           [](const ContextManager& context, const std::string& item) {
             return describe(unwrap(without_gil([&] { return context.show(item); })));
           })
      .def("items",
           [](const ContextManager& context) {
             nb::list list;
             for (const ContextItem& item : without_gil([&] { return context.items(); })) {
               list.append(describe(item));
             }
             return list;
           })
      .def("stats",
           [](const ContextManager& context) {
             return describe(without_gil([&] { return context.stats(); }));
           })
      .def("clear", &ContextManager::clear, nb::call_guard<nb::gil_scoped_release>());
}

void bind_asking(nb::class_<ContextManager>& context) {
  context
      .def("conversation_blocks",
           [](ContextManager& context) {
             return unwrap(without_gil([&] { return context.conversation_blocks(&interrupted); }));
           })
      .def("active_blocks",
           [](ContextManager& context) {
             return unwrap(without_gil([&] { return context.active_blocks(&interrupted); }));
           })
      .def("infer", &infer, nb::arg("text").none(), nb::arg("params").none())
      .def("compose",
           [](ContextManager& context, const std::vector<std::string>& items,
              const std::string& name) {
             return unwrap(without_gil([&] { return context.compose(items, name, &interrupted); }));
           })
      .def("populate", [](ContextManager& context) {
        return unwrap(without_gil([&] { return context.populate(&interrupted); }));
      });
}

void bind_tiers(nb::class_<ContextManager>& context) {
  context
      .def("unload",
           [](ContextManager& context, const std::string& item, bool drop) {
             unwrap(without_gil([&] { return context.unload(item, drop); }));
           })
      .def("save",
           [](ContextManager& context, const std::string& item) {
             unwrap(without_gil([&] { return context.save(item, &interrupted); }));
           })
      .def("restore",
           [](ContextManager& context, const std::string& item) {
             unwrap(without_gil([&] { return context.restore(item, &interrupted); }));
           })
      .def("erase", [](ContextManager& context, const std::string& item, bool wipe) {
        unwrap(without_gil([&] { return context.erase(item, wipe); }));
      });
}

}  // namespace

void bind_contexts(nb::module_& module) {
  nb::class_<ContextManager> context(module, "ContextManager");
  context.def_static("open", &open);
  bind_items(context);
  bind_asking(context);
  bind_tiers(context);
}

}  // namespace quire::python
