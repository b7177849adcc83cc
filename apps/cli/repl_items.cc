// The commands of `quire chat` on items: what the context holds, what is switched on, where it is.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "commands.h"
#include "generate.h"
#include "output.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/tools.h"
#include "repl.h"
#include "repl_text.h"

namespace quire::cli {
namespace {

Status print_title(Repl& repl, const std::string& id) {
  QUIRE_TRY(const ContextItem item, repl.context().show(id));
  return print(title(item) + "\n");
}

std::string counted(std::int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

Status add_text(Repl& repl, const std::string& text, const ItemOptions& options) {
  QUIRE_TRY(const std::string id, repl.context().add(text, options, repl.interrupt()));
  return print_title(repl, id);
}

Status add_item(Repl& repl, const Arguments& arguments) {
  return add_text(repl, arguments.text, {.name = arguments.name, .tags = {}});
}

Status load_item(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const std::string text, read_text(arguments.word));
  return add_text(repl, text, {.name = arguments.name, .tags = {}});
}

// Checks that a system text comes first. Items stand in the order in which they were added, and a
// system text holds for later items only.
Status check_comes_first(const std::vector<ContextItem>& items) {
  if (std::ranges::all_of(items, [](const auto& i) { return i.kind == ItemKind::kSystem; })) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          "a system text comes before all other items; /clear forgets those, and /activate ID "
          "switches an earlier system text on"};
}

Status system(Repl& repl, const Arguments& arguments) {
  std::error_code unreadable;
  std::string text = arguments.text;
  if (std::filesystem::is_regular_file(expand_home(text), unreadable)) {
    QUIRE_TRY(text, read_text(text));
  }
  QUIRE_TRY(const std::vector<ContextItem> before, repl.context().items());
  QUIRE_TRY_STATUS(check_comes_first(before));
  QUIRE_TRY(const std::string id,
            repl.context().add(text, {.name = "", .tags = {}, .kind = ItemKind::kSystem},
                               repl.interrupt()));
  for (const ContextItem& item : before) {
    const bool earlier = item.kind == ItemKind::kSystem && item.id != id;
    QUIRE_TRY_STATUS(earlier ? repl.context().deactivate(item.id) : Status());
  }
  return print_title(repl, id);
}

Status list_items(Repl& repl, const Arguments& /*arguments*/) {
  QUIRE_TRY(const std::vector<ContextItem> items, repl.context().items());
  return print(item_table(items, repl.colours()));
}

Status show_context(Repl& repl, const Arguments& arguments) {
  if (!arguments.word.empty() && arguments.word != "list") {
    return {ErrorCode::kInvalidArgument, "/context takes \"list\" or nothing, not \"" +
                                             arguments.word + "\"; /add TEXT adds an item"};
  }
  QUIRE_TRY_STATUS(list_items(repl, arguments));
  QUIRE_TRY(const ContextStats stats, repl.context().stats());
  QUIRE_TRY(const Stats engine, repl.llm().stats());
  const auto count = [&engine](std::string_view name) {
    const auto found = std::ranges::find(engine, name, &Stats::value_type::first);
    return std::to_string(found == engine.end() ? 0 : static_cast<std::int64_t>(found->second));
  };
  return print("device " + counted(stats.device_items, "item") + ", " +
               std::to_string(stats.device_bytes) + " bytes; host " +
               counted(stats.host_items, "item") + ", " + std::to_string(stats.host_bytes) +
               " bytes; disk " + counted(stats.disk_items, "item") + "; saved " +
               std::to_string(stats.saved_items) + "\n" + std::to_string(stats.active_items) +
               " of " + counted(stats.items, "item") + " active, " +
               counted(stats.active_tokens, "token") + "; blocks: " + count("blocks_in_use") +
               " in use, " + count("blocks_free") + " of " + count("blocks_total") + " free\n");
}

Status show_item(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const ContextItem item, repl.context().show(arguments.ids.front()));
  return print(item_listing(item));
}

Status set_active(Repl& repl, const Arguments& arguments, bool active) {
  QUIRE_TRY(const auto ids, repl.ids_of(arguments.ids));
  for (const std::string& id : ids) {
    QUIRE_TRY_STATUS(active ? repl.context().activate(id) : repl.context().deactivate(id));
  }
  return {};
}

Status activate(Repl& repl, const Arguments& arguments) {
  return set_active(repl, arguments, true);
}

Status deactivate(Repl& repl, const Arguments& arguments) {
  return set_active(repl, arguments, false);
}

Status populate(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const ContextStats before, repl.context().stats());
  if (arguments.ids.empty()) {
    QUIRE_TRY([[maybe_unused]] const std::int64_t computed,
              repl.context().populate(repl.interrupt()));
  } else {
    QUIRE_TRY(const auto ids, repl.ids_of(arguments.ids));
    QUIRE_TRY_STATUS(repl.context().restore(ids.front(), repl.interrupt()));
  }
  QUIRE_TRY(const ContextStats after, repl.context().stats());
  return print(counted(after.tokens_computed - before.tokens_computed, "token") + " computed\n");
}

Status compose_items(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const std::string id,
            repl.context().compose(arguments.ids, arguments.name, repl.interrupt()));
  return print_title(repl, id);
}

Status tag(Repl& repl, const Arguments& arguments) {
  return repl.context().tag(arguments.ids.front(), arguments.word);
}

Status set_retention(Repl& repl, const std::string& name,
                     const std::function<void(ItemRetention&)>& change) {
  QUIRE_TRY(ContextItem item, repl.context().show(name));
  change(item.retention);
  return repl.context().set_retention(item.id, item.retention);
}

Status pin_item(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const auto ids, repl.ids_of(arguments.ids));
  const bool pinned = !arguments.flag;
  for (const std::string& id : ids) {
    QUIRE_TRY_STATUS(set_retention(repl, id, [&](ItemRetention& r) { r.pinned = pinned; }));
  }
  return {};
}

Status set_priority(Repl& repl, const Arguments& arguments) {
  return set_retention(repl, arguments.ids.front(),
                       [&](ItemRetention& r) { r.priority = arguments.number; });
}

Status set_ttl(Repl& repl, const Arguments& arguments) {
  return set_retention(repl, arguments.ids.front(),
                       [&](ItemRetention& r) { r.ttl_seconds = arguments.seconds; });
}

Status need_store(Repl& repl) {
  return repl.has_store() ? Status()
                          : Status(ErrorCode::kInvalidArgument,
                                   "there is no store; begin quire chat with --store DIR");
}

Status save(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY_STATUS(need_store(repl));
  QUIRE_TRY(std::vector<std::string> ids, repl.ids_of(arguments.ids));
  if (ids.empty()) {
    QUIRE_TRY(const std::vector<ContextItem> items, repl.context().items());
    for (const ContextItem& item : items) {
      if (item.active) {
        ids.push_back(item.id);
      }
    }
  }
  for (const std::string& id : ids) {
    QUIRE_TRY_STATUS(repl.context().save(id, repl.interrupt()));
  }
  return print("saved " + counted(std::ssize(ids), "item") + "\n");
}

Status unload(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const auto ids, repl.ids_of(arguments.ids));
  for (const std::string& id : ids) {
    QUIRE_TRY_STATUS(repl.context().unload(id, arguments.flag));
  }
  return {};
}

Status restore(Repl& repl, const Arguments& arguments) {
  for (const std::string& name : arguments.ids) {
    QUIRE_TRY_STATUS(repl.context().restore(name, repl.interrupt()));
    QUIRE_TRY_STATUS(print_title(repl, name));
  }
  return {};
}

Status erase(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const auto ids, repl.ids_of(arguments.ids));
  for (const std::string& id : ids) {
    QUIRE_TRY_STATUS(repl.context().erase(id, arguments.flag));
  }
  return {};
}

// Takes an item out of the conversation; what is saved stays so unless `disk`, switched off.
Status take_out(Repl& repl, const ContextItem& item, bool disk) {
  if (disk || !item.saved) {
    return repl.context().erase(item.id);
  }
  QUIRE_TRY_STATUS(repl.context().deactivate(item.id));
  return repl.context().unload(item.id, true);
}

Status clear_conversation(Repl& repl, bool disk) {
  std::int64_t cleared = 0;
  QUIRE_TRY(const std::vector<ContextItem> items, repl.context().items());
  for (const ContextItem& item : items) {
    const bool turn = item.kind == ItemKind::kUser || item.kind == ItemKind::kOutput;
    QUIRE_TRY_STATUS(turn ? take_out(repl, item, disk) : Status());
    cleared += turn ? 1 : 0;
  }
  repl.forget_history();
  return print("cleared " + counted(cleared, "item") + "\n");
}

// Adds the item again, with what was said of its retention.
Status add_again(Repl& repl, const ContextItem& item) {
  const Prompt content = item.text.empty() ? Prompt(item.token_ids) : Prompt(item.text);
  QUIRE_TRY(const std::string id,
            repl.context().add(content, {.name = item.name, .tags = item.tags, .kind = item.kind},
                               repl.interrupt()));
  return repl.context().set_retention(id, item.retention);
}

Status clear_all(Repl& repl, bool disk) {
  QUIRE_TRY(const std::vector<ContextItem> items, repl.context().items());
  for (const ContextItem& item : items) {
    QUIRE_TRY_STATUS(disk ? repl.context().erase(item.id) : Status());
  }
  [[maybe_unused]] const std::int64_t left = repl.context().clear();
  repl.forget_history();
  std::int64_t kept = 0;
  for (const ContextItem& item : items) {
    const bool keeps = item.kind == ItemKind::kSystem && item.active;
    QUIRE_TRY_STATUS(keeps ? add_again(repl, item) : Status());
    kept += keeps ? 1 : 0;
  }
  return print("cleared " + counted(std::ssize(items) - kept, "item") + "\n");
}

Status clear_items(Repl& repl, const Arguments& arguments) {
  const bool disk = arguments.flag;
  if (arguments.word.empty()) {
    return clear_all(repl, disk);
  }
  if (arguments.word == "conversation") {
    return clear_conversation(repl, disk);
  }
  return {ErrorCode::kInvalidArgument,
          "/clear takes \"conversation\" or nothing, not \"" + arguments.word + "\""};
}

void declare_making(LineCommands& commands) {
  commands.add("system", "what the assistant is told first", &system)
      .text("TEXT|FILE")
      .more(
          "TEXT that is the path of a file stands for what is in it. An earlier one is switched "
          "off.\n"
          "It comes before all other items; /clear forgets those.\n");
  commands.add("add", "a text that the next questions share", &add_item)
      .name()
      .text("TEXT")
      .more(
          "Its KV is computed once. The same text again is the same item. Items are named by id, "
          "by\n"
          "the beginning of an id (4 digits or more), or by NAME.\n");
  commands.add("load", "the same with the text of a file", &load_item)
      .name()
      .word("FILE", Presence::kRequired);
  commands.add("context", "all items, memory and tokens", &show_context).word("list");
  commands.add("list", "all items", &list_items);
  commands.add("show", "all about one item", &show_item).id();
}

void declare_using(LineCommands& commands) {
  const char* const nothing = "Nothing is computed or copied.\n";
  commands.add("activate", "switches items on", &activate).ids().more(nothing);
  commands
      .add("deactivate", "switches items off: they have no influence on what is asked next",
           &deactivate)
      .ids()
      .more(nothing);
  commands.add("populate", "computes or fetches the KV of active items, or of one", &populate)
      .id(Presence::kOptional);
  commands.add("compose", "one item of several, which then have seen each other", &compose_items)
      .ids()
      .name()
      .more("The items it is made of are switched off.\n");
  commands.add("tag", "gives an item a tag", &tag).id().word("TAG", Presence::kRequired);
}

void declare_keeping(LineCommands& commands) {
  commands.add("pin", "keeps the KV of items where it is, while others make room", &pin_item)
      .ids()
      .flag("--off", "let it go again")
      .more("In the store too. With --off they may go again.\n");
  commands.add("priority", "where memory is short items with a lower one go first", &set_priority)
      .id()
      .number()
      .more(
          "0 at the start; it may be negative. Of equal ones the least recently used goes "
          "first.\n");
  commands.add("ttl", "so long after its last use an item may go before all others", &set_ttl)
      .id()
      .seconds()
      .more(
          "One that is off then gives up its KV in memory with the next use of the context, and "
          "the\n"
          "store may forget it. Without SECONDS its time does not end.\n");
}

void declare_moving(LineCommands& commands) {
  commands.add("save", "writes items into the store: the given or all active ones", &save)
      .ids(Presence::kOptional)
      .more("They stay where they are. Needs --store DIR.\n");
  commands.add("unload", "frees device memory: the KV goes to host memory", &unload)
      .ids()
      .flag("--drop", "keep it nowhere but in the store")
      .more(
          "With --drop it goes nowhere: it is read from the store or computed when it is used "
          "again.\n");
  commands.add("restore", "back to the device: from host memory or the store", &restore)
      .ids()
      .more(
          "Also items that an earlier session has saved; these join the context behind the "
          "others.\n"
          "Of several, those before the first one that cannot be restored are back.\n");
  commands.add("erase", "forgets items everywhere, in the store too", &erase)
      .ids()
      .flag("--wipe", "overwrite the bytes with zeros")
      .more("With --wipe their bytes in the store become zeros first.\n");
  commands
      .add("clear", "forgets all items but the system text, or the questions and answers",
           &clear_items)
      .word("conversation")
      .flag("--disk", "in the store too")
      .more(
          "What was saved stays in the store; saved questions and answers are switched off. With\n"
          "--disk these items go from the store too; what only other sessions have saved there "
          "stays\n"
          "in any case: `quire store rm` removes it. Branches and checkpoints are forgotten "
          "too.\n");
}

}  // namespace

void declare_item_commands(LineCommands& commands) {
  commands.begin_group(kItemGroup);
  declare_making(commands);
  declare_using(commands);
  declare_keeping(commands);
  declare_moving(commands);
}

}  // namespace quire::cli
