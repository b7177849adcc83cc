// quire store: what lies in a store directory, without a model.
#include "quire/store.h"

#include <CLI/CLI.hpp>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "options.h"
#include "output.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

constexpr const char* kWeightsKind = "weights";  // in the list of entries
constexpr const char* kEntryHelp = "key, beginning of a key, or name";

struct Options {
  std::string folder;
  StoreOptions store;
  Format format = Format::kText;
  std::string kind;                  // ls: only these
  std::vector<std::string> entries;  // rm, pin
  std::string entry;                 // export
  std::string file;
  bool wipe = false;
  bool off = false;
  bool force = false;  // repair
};

// Does one command on the open store; false: done, and something is wrong with the store.
using Work = Result<bool> (*)(Store& store, const Options& options);

json::object describe_entry(const StoreEntry& entry) {
  boost::system::error_code failed;
  json::value metadata = json::parse(entry.metadata_json, failed);
  const auto time = [](const std::string& text) {
    return text.empty() ? json::value(nullptr) : json::value(text);
  };
  return {{"key", entry.key},
          {"kind", entry.kind},
          {"name", entry.name},
          {"tenant", entry.tenant},
          {"tokens", entry.tokens},
          {"bytes", entry.bytes},
          {"ratio", entry.ratio > 0 ? json::value(entry.ratio) : json::value(nullptr)},
          {"created_at", time(entry.created_at)},
          {"accessed_at", time(entry.accessed_at)},
          {"expires_at", time(entry.expires_at)},
          {"pinned", entry.pinned},
          {"metadata", failed ? json::value(nullptr) : std::move(metadata)}};
}

json::object describe_entry(const StoreWeights& weights) {
  return {{"key", weights.key},
          {"kind", kWeightsKind},
          {"name", weights.model},
          {"tenant", ""},
          {"tokens", 0},
          {"bytes", weights.bytes},
          {"ratio", nullptr},
          {"created_at", weights.written_at},
          {"accessed_at", nullptr},
          {"expires_at", nullptr},
          {"pinned", false},
          {"metadata", {{"state", weights.state}, {"message", weights.message}}}};
}

Status print_table(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (const std::string& line : format_table(rows)) {
    text += line + '\n';
  }
  return print(text);
}

// Returns "0.77", or "-" where there is none.
std::string shown_ratio(double ratio) {
  std::array<char, 8> text{};
  const auto end = std::to_chars(text.begin(), text.end(), ratio, std::chars_format::fixed, 2).ptr;
  return ratio > 0 ? std::string(text.begin(), end) : "-";
}

Result<bool> list_entries(Store& store, const Options& options) {
  QUIRE_TRY(const std::vector<StoreEntry> entries, store.list());
  json::array objects;
  std::vector<std::vector<std::string>> rows = {
      {"KEY", "KIND", "TOKENS", "BYTES", "RATIO", "LAST USED", "KEPT", "NAME"}};
  for (const StoreEntry& entry : entries) {
    if (!options.kind.empty() && entry.kind != options.kind) {
      continue;
    }
    objects.push_back(describe_entry(entry));
    const std::string expires = entry.expires_at.empty() ? "-" : "until " + entry.expires_at;
    rows.push_back({entry.key.substr(0, kShownDigits), entry.kind, std::to_string(entry.tokens),
                    std::to_string(entry.bytes), shown_ratio(entry.ratio), entry.accessed_at,
                    entry.pinned ? "pinned" : expires, preview(entry.name)});
  }
  QUIRE_TRY(const std::vector<StoreWeights> packed, store.weights());
  for (const StoreWeights& weights : packed) {
    if (!options.kind.empty() && options.kind != kWeightsKind) {
      continue;
    }
    objects.push_back(describe_entry(weights));
    rows.push_back({weights.key.substr(0, kShownDigits), kWeightsKind, "-",
                    std::to_string(weights.bytes), "-", "-", weights.state,
                    preview(weights.model)});
  }
  QUIRE_TRY_STATUS(options.format == Format::kJson ? print_json(objects) : print_table(rows));
  return true;
}

Result<bool> verify(Store& store, const Options& options) {
  QUIRE_TRY(const std::vector<StoreObject> all, store.verify());
  json::array objects;
  std::string text;
  std::int64_t bad = 0;
  for (const StoreObject& object : all) {
    objects.push_back({{"hash", object.hash},
                       {"state", object.state},
                       {"bytes", object.bytes},
                       {"entries", object.entries},
                       {"message", object.message}});
    if (object.state != "ok") {
      ++bad;
      text += object.state + ' ' + object.hash + " (entries: " + std::to_string(object.entries) +
              "): " + object.message + '\n';
    }
  }
  QUIRE_TRY(const std::vector<StoreWeights> weights, store.weights(true));
  for (const StoreWeights& file : weights) {
    objects.push_back({{"hash", file.key},
                       {"state", file.state},
                       {"bytes", file.bytes},
                       {"entries", 0},
                       {"message", file.message}});
    bad += file.state == "damaged" ? 1 : 0;
    if (file.state != "ok") {
      text += file.state + ' ' + file.key + " (weights): " + file.message + '\n';
    }
  }
  text += "objects: " + std::to_string(all.size() + weights.size()) +
          ", damaged or missing: " + std::to_string(bad) + '\n';
  QUIRE_TRY_STATUS(options.format == Format::kJson ? print_json(objects) : print(text));
  return bad == 0;
}

Result<bool> collect(Store& store, const Options& options) {
  QUIRE_TRY(const StoreCleaning done, store.gc());
  const json::object object{{"expired_entries", done.expired_entries},
                            {"evicted_entries", done.evicted_entries},
                            {"removed_objects", done.removed_objects},
                            {"removed_bytes", done.removed_bytes},
                            {"removed_temporaries", done.removed_temporaries},
                            {"removed_weights", done.removed_weights},
                            {"removed_weight_bytes", done.removed_weight_bytes},
                            {"objects", done.objects},
                            {"bytes", done.bytes},
                            {"kept_objects", done.kept_objects},
                            {"message", done.message}};
  QUIRE_TRY_STATUS(options.format == Format::kJson ? print_json(object)
                                                   : print(format_listing(object)));
  return true;
}

Result<bool> export_entry(Store& store, const Options& options) {
  QUIRE_TRY(const StoreEntry entry, store.find(options.entry));
  QUIRE_TRY_STATUS(store.export_entry(entry.key, options.file));
  if (options.format == Format::kJson) {
    QUIRE_TRY_STATUS(print_json(describe_entry(entry)));
  }
  return true;
}

Result<bool> import_entry(Store& store, const Options& options) {
  QUIRE_TRY(const StoreEntry entry, store.import_entry(options.file));
  QUIRE_TRY_STATUS(options.format == Format::kJson ? print_json(describe_entry(entry))
                                                   : print(entry.key + '\n'));
  return true;
}

// Changes each of the entries that the command names, all of which must be there first.
Result<bool> for_each_entry(Store& store, const Options& options,
                            const std::function<Status(const StoreEntry&)>& change) {
  std::vector<StoreEntry> entries;
  for (const std::string& name : options.entries) {
    QUIRE_TRY(entries.emplace_back(), store.find(name));
  }
  json::array keys;
  for (const StoreEntry& entry : entries) {
    QUIRE_TRY_STATUS(change(entry));
    keys.emplace_back(entry.key);
  }
  if (options.format == Format::kJson) {
    QUIRE_TRY_STATUS(print_json(keys));
  }
  return true;
}

// Ends an earlier wipe of an entry that is no longer there; the call is refused all the same.
Status finish_wipe(Store& store, const std::string& name) {
  return store.find(name).ok() ? Status() : store.remove(name, true);
}

Result<bool> delete_entry(Store& store, const Options& options) {
  for (const std::string& name : options.entries) {
    QUIRE_TRY_STATUS(options.wipe ? finish_wipe(store, name) : Status());
  }
  return for_each_entry(store, options, [&](const StoreEntry& entry) {
    return store.remove(entry.key, options.wipe);
  });
}

Result<bool> pin_entry(Store& store, const Options& options) {
  return for_each_entry(
      store, options, [&](const StoreEntry& entry) { return store.pin(entry.key, !options.off); });
}

// Opens a store to import into. No store is made for what is refused.
Result<Store> open_for_import(const Options& options) {
  StoreOptions there = options.store;
  there.create = false;
  auto store = Store::open(options.folder, there);
  if (!store.ok()) {
    QUIRE_TRY_STATUS(Store::check_entry_file(options.file));
    store = Store::open(options.folder, options.store);
  }
  return store;
}

int run_on_store(const Options& options, Work work) {
  auto store =
      work == &import_entry ? open_for_import(options) : Store::open(options.folder, options.store);
  if (!store.ok()) {
    return fail(store.error());
  }
  const auto good = work(*store, options);
  if (!good.ok()) {
    return fail(good.error());
  }
  return *good ? kExitOk : kExitFailed;
}

int repair(const Options& options) {
  const auto kept = Store::repair(options.folder, options.force);
  if (!kept.ok()) {
    return fail(kept.error());
  }
  const Status shown = options.format == Format::kJson
                           ? print_json({{"entries", *kept}})
                           : print("entries kept: " + std::to_string(*kept) + '\n');
  return shown.ok() ? kExitOk : fail(shown.error());
}

// A command `quire store NAME DIR`.
class StoreCommand {
 public:
  StoreCommand(CLI::App& parent, const char* name, const char* help)
      : command_(parent.add_subcommand(name, help)), options_(std::make_shared<Options>()) {
    command_->add_option("DIR", options_->folder, "directory of the store")->required();
    options_->store.create = false;
  }

  CLI::App* operator->() const { return command_; }
  [[nodiscard]] Options& options() const { return *options_; }

  // Declares the options that follow those of the command, and what it does.
  void ends_with(Action& action, const std::function<int(const Options&)>& work) const {
    add_format(*command_, options_->format);
    command_->add_flag_callback(
        "--json", [to = options_] { to->format = Format::kJson; }, "short for --format json");
    command_->callback([&action, work, options = options_] {
      action = [work, options] { return work(*options); };
    });
  }
  void ends_with(Action& action, Work work) const {
    command_->add_option("--tenant", options_->store.tenant, "only entries of this tenant");
    ends_with(action, [work](const Options& options) { return run_on_store(options, work); });
  }

 private:
  CLI::App* command_;
  std::shared_ptr<Options> options_;
};

void add_looking(CLI::App& store, Action& action) {
  const StoreCommand ls(store, "ls", "Entries, the least recently used first, then packed weights");
  ls.options().store.read_only = true;
  ls->add_option("--kind", ls.options().kind, "only these")
      ->check(CLI::IsMember({"chunk", "sequence", "context", "checkpoint", kWeightsKind}));
  ls.ends_with(action, &list_entries);

  const StoreCommand check(
      store, "verify", "Read every object and all packed weights; exit code 1 if one is damaged");
  check.options().store.read_only = true;
  check.ends_with(action, &verify);
}

void add_moving(CLI::App& store, Action& action) {
  const StoreCommand out(store, "export", "Write an entry and its objects to one file");
  out.options().store.read_only = true;
  out->add_option("ENTRY", out.options().entry, kEntryHelp)->required();
  out->add_option("FILE", out.options().file, "where to; what is there is replaced")->required();
  out.ends_with(action, &export_entry);

  const StoreCommand in(store, "import", "Put the entry of such a file; makes the store if needed");
  in.options().store.create = true;
  in->add_option("FILE", in.options().file, "of somebody whose KV you trust")->required();
  in.ends_with(action, &import_entry);
}

void add_changing(CLI::App& store, Action& action) {
  const StoreCommand rm(store, "rm", "Remove entries, and what only they held");
  rm->add_option("ENTRY", rm.options().entries, kEntryHelp)->required();
  rm->add_flag("--wipe", rm.options().wipe, "overwrite the bytes with zeros");
  rm.ends_with(action, &delete_entry);

  const StoreCommand keep(store, "pin", "Never evict entries, nor let them expire");
  keep->add_option("ENTRY", keep.options().entries, kEntryHelp)->required();
  keep->add_flag("--off", keep.options().off, "let them go again");
  keep.ends_with(action, &pin_entry);

  const StoreCommand gc(
      store, "gc", "Remove what expired, what nobody names, and weights of models that are gone");
  gc->add_option_function<std::string>(
        "--max-bytes",
        [&limit = gc.options().store.max_bytes](const std::string& text) {
          const auto bytes = parse_bytes(text);
          if (!bytes.ok()) {
            throw CLI::ValidationError("--max-bytes", bytes.error().message);
          }
          limit = *bytes;
        },
        "then the least recently used entries, until no more is left")
      ->option_text("SIZE");
  gc.ends_with(action, &collect);

  const StoreCommand mend(store, "repair", "Make a damaged index anew; keeps what can be read");
  mend->add_flag("--force", mend.options().force,
                 "also where no entry can be kept, or the index is of a later version");
  mend.ends_with(action, &repair);
}

}  // namespace

void add_store(CLI::App& app, Action& action) {
  CLI::App* store = app.add_subcommand(
      "store", "Look after a store: store ls|verify|gc|export|import|rm|pin|repair DIR ...");
  store->require_subcommand(0, 1);
  store->callback([store, &action] {
    if (store->get_subcommands().empty()) {
      action = [] {
        return fail_usage(
            "store wants ls|verify|gc|export|import|rm|pin|repair; see quire store --help");
      };
    }
  });
  add_looking(*store, action);
  add_moving(*store, action);
  add_changing(*store, action);
}

}  // namespace quire::cli
