#include "context.h"

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "errors.h"
#include "names.h"
#include "outputs.h"
#include "params.h"
#include "paths.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "waiting.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

ContextManager open(const LLM& llm, const std::string& mode, const nb::bytes& store,
                    ContextOptions options) {
  options.mode = by_name(mode, "mode", &reuse_mode_name, {ReuseMode::kAnchored, ReuseMode::kExact});
  options.store = to_path(store);
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
  dict["pinned"] = item.retention.pinned;
  dict["priority"] = item.retention.priority;
  dict["ttl_seconds"] = item.retention.ttl_seconds;
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

// name, tags
using Labels = std::pair<std::string, std::vector<std::string>>;

std::string add(ContextManager& context, const Prompt& content, const Labels& labels,
                const std::string& kind, bool active, const ItemRetentionUpdate& retention) {
  const ItemOptions options{
      .name = labels.first,
      .tags = labels.second,
      .kind = by_name(kind, "kind", &item_kind_name, {ItemKind::kSystem, ItemKind::kContext}),
      .active = active,
      .retention = retention};
  return unwrap(without_gil([&] { return context.add(content, options, &interrupted); }));
}

// Hands pieces of text to a Python function, which ends the answer by returning True.
class Listener {
 public:
  explicit Listener(nb::object on_text) : on_text_(std::move(on_text)) {}
  [[nodiscard]] ContextManager::Follow follow() {
    if (on_text_.is_none()) {
      return {};
    }
    return {.on_text = [this](std::string_view text) { return hear(text); },
            .stop = [this] { return enough_; }};
  }
  // Throws the exception that the function has raised, if any.
  void rethrow() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

 private:
  Status hear(std::string_view text) {
    const WithGil gil;
    try {
      const nb::object answer = on_text_(nb::str(text.data(), text.size()));
      enough_ = enough_ || answer.is(nb::bool_(true));
      return {};
    } catch (...) {
      error_ = std::current_exception();
      return {ErrorCode::kCancelled, "on_text has raised"};
    }
  }

  const nb::object on_text_;
  std::exception_ptr error_;
  bool enough_ = false;
};

nb::dict infer(ContextManager& context, const std::optional<std::string>& text,
               const nb::object& params, nb::object on_text, const RequestOptions& options) {
  const SamplingParams sampling = to_params(params);
  Listener listener(std::move(on_text));
  auto answered = without_gil(
      [&] { return context.infer(text, sampling, &interrupted, listener.follow(), options); });
  listener.rethrow();
  return to_dict(unwrap(std::move(answered)));
}

void bind_items(nb::class_<ContextManager>& context) {
  context
      .def("add", &add, nb::arg("content"), nb::arg("labels"), nb::arg("kind"), nb::arg("active"),
           nb::arg("retention"))
      .def("set_retention",
           [](ContextManager& context, const std::string& item, const ItemRetentionUpdate& given) {
             const ItemRetention wanted{.pinned = given.pinned.value_or(false),
                                        .priority = given.priority.value_or(0),
                                        .ttl_seconds = given.ttl_seconds};
             unwrap(without_gil([&] { return context.set_retention(item, wanted); }));
           })
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
             for (const ContextItem& item : unwrap(without_gil([&] { return context.items(); }))) {
               list.append(describe(item));
             }
             return list;
           })
      .def("stats",
           [](const ContextManager& context) {
             return describe(unwrap(without_gil([&] { return context.stats(); })));
           })
      .def("explain",
           [](const ContextManager& context) {
             return to_list(unwrap(without_gil([&] { return context.explain(); })));
           })
      .def("clear", &ContextManager::clear, nb::call_guard<WithoutGil>())
      .def("check_open", [](const ContextManager& context) { unwrap(context.check_open()); });
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
      .def("infer", &infer, nb::arg("text").none(), nb::arg("params").none(),
           nb::arg("on_text").none(), nb::arg("options"))
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
  nb::class_<ContextOptions>(module, "ContextOptions")
      .def(nb::init<>())
      .def_rw("salt", &ContextOptions::salt)
      .def_rw("max_host_bytes", &ContextOptions::max_host_bytes)
      .def_rw("max_store_bytes", &ContextOptions::max_store_bytes)
      .def_prop_rw(
          "compress",
          [](const ContextOptions& options) { return compression_name(options.compress); },
          [](ContextOptions& options, const std::string& name) {
            options.compress = to_compression(name);
          })
      .def_rw("write_through", &ContextOptions::write_through);
  nb::class_<ItemRetentionUpdate>(module, "ItemRetention")
      .def(nb::init<>())
      .def_rw("pinned", &ItemRetentionUpdate::pinned, nb::arg().none())
      .def_rw("priority", &ItemRetentionUpdate::priority, nb::arg().none())
      .def_rw("ttl_seconds", &ItemRetentionUpdate::ttl_seconds, nb::arg().none());
  context.def_static("open", &open);
  bind_items(context);
  bind_asking(context);
  bind_tiers(context);
}

}  // namespace quire::python
