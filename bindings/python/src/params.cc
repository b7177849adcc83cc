#include "params.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "drafter.h"
#include "errors.h"
#include "log.h"
#include "outputs.h"
#include "paths.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "wakeups.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

// Returns a value as Python holds it: most as nanobind does, an empty list as None.
template <class Value>
nb::object to_python(const Value& value) {
  return nb::cast(value);
}
template <class Value>
nb::object to_python(const std::vector<Value>& values) {
  return values.empty() ? nb::none() : nb::object(nb::cast(values));
}
nb::object to_python(const std::vector<std::pair<TokenId, double>>& bias) {
  nb::dict dict;
  for (const auto& [id, weight] : bias) {
    dict[nb::int_(id)] = weight;
  }
  return bias.empty() ? nb::none() : nb::object(dict);
}

bool is_bool(nb::handle value) {
  bool held = false;
  return nb::try_cast<bool>(value, held);
}

// Returns a number. A bool, which to Python is an integer, is none.
template <class Value>
Value to_number(nb::handle value) {
  if (is_bool(value)) {
    throw nb::type_error("a bool is no number");
  }
  return nb::cast<Value>(value);
}

// Reads a value from Python: a text is a list of one, keys of a bias may be strings, as in JSON.
template <class Value>
void from_python(nb::handle value, Value& out) {
  out = to_number<Value>(value);
}
void from_python(nb::handle value, bool& out) {
  std::int32_t number = 0;  // JSON programs write flags as 0 and 1
  const bool is_flag = nb::try_cast<std::int32_t>(value, number) && (number == 0 || number == 1);
  out = is_flag && !is_bool(value) ? number == 1 : nb::cast<bool>(value);
}
void from_python(nb::handle value, std::vector<TokenId>& out) {
  out.clear();
  if (!value.is_none()) {
    for (const nb::object& id : nb::cast<std::vector<nb::object>>(value)) {
      out.push_back(to_number<TokenId>(id));
    }
  }
}
void from_python(nb::handle value, std::vector<std::string>& out) {
  if (nb::isinstance<nb::str>(value)) {
    out = {nb::cast<std::string>(value)};
    return;
  }
  out = value.is_none() ? std::vector<std::string>() : nb::cast<std::vector<std::string>>(value);
}
void from_python(nb::handle value, std::vector<std::pair<TokenId, double>>& out) {
  out.clear();
  if (!value.is_none()) {
    for (const auto& [id, weight] : nb::cast<nb::dict>(value)) {
      const nb::object key = nb::isinstance<nb::str>(id) ? nb::int_(id) : nb::borrow(id);
      out.emplace_back(to_number<TokenId>(key), to_number<double>(weight));
    }
  }
}

nb::object get_field(const SamplingParams& params, const SamplingField& field) {
  return std::visit([&params](auto member) { return to_python(params.*member); }, field.member);
}

void set_field(SamplingParams& params, const SamplingField& field, nb::handle value) {
  if (std::string_view(field.name) == "speculate" && is_bool(value)) {
    params.speculate = nb::cast<bool>(value) ? std::optional<std::int32_t>() : 0;
    return;
  }
  std::visit([&](auto member) { from_python(value, params.*member); }, field.member);
  if (std::string_view(field.name) == "top_k" && params.top_k == -1) {
    params.top_k = 0;  // vLLM writes "all" so
  }
}

// Returns the fields that are not as by default.
nb::dict said(const SamplingParams& params) {
  nb::dict fields;
  for (const SamplingField& field : sampling_fields()) {
    const nb::object value = get_field(params, field);
    if (!value.equal(get_field(SamplingParams(), field))) {
      fields[field.name] = value;
    }
  }
  return fields;
}

std::string repr_of(const SamplingParams& params) {
  std::string text = "SamplingParams(";
  for (const auto& [name, value] : said(params)) {
    text += std::string(text.back() == '(' ? "" : ", ") + nb::cast<std::string>(name) + "=" +
            nb::cast<std::string>(nb::repr(value));
  }
  return text + ")";
}

// Returns the signature of the constructor, for inspect.signature and help.
nb::object signature() {
  const nb::module_ inspect = nb::module_::import_("inspect");
  const nb::object parameter = inspect.attr("Parameter");
  nb::list parameters;
  for (const SamplingField& field : sampling_fields()) {
    parameters.append(parameter(field.name, parameter.attr("POSITIONAL_OR_KEYWORD"),
                                nb::arg("default") = get_field(SamplingParams(), field)));
  }
  return inspect.attr("Signature")(parameters);
}

// Returns arguments by name: those by position get names in the order of the signature.
nb::dict by_name(const nb::args& values, const nb::kwargs& named) {
  nb::dict fields;
  std::size_t next = 0;
  for (const SamplingField& field : sampling_fields()) {
    if (next < values.size()) {
      fields[field.name] = values[next++];
    }
  }
  if (next < values.size()) {
    throw nb::type_error(("SamplingParams has " + std::to_string(next) + " fields, not " +
                          std::to_string(values.size()))
                             .c_str());
  }
  for (const auto& [name, value] : named) {
    if (fields.contains(name)) {
      throw nb::type_error(
          ("sampling parameter '" + nb::cast<std::string>(name) + "' is given twice").c_str());
    }
    fields[name] = value;
  }
  return fields;
}

nb::list field_names() {
  nb::list names;
  for (const SamplingField& field : sampling_fields()) {
    names.append(field.name);
  }
  return names;
}

// Refuses an unknown name with the nearest right word.
[[noreturn]] void refuse_unknown(const std::string& name) {
  const nb::object message =
      nb::module_::import_("quire.habits").attr("unknown_sampling")(name, field_names());
  throw nb::value_error(nb::cast<std::string>(message).c_str());
}

// Raises the AttributeError for a field that is not there, or that stays as it is.
[[noreturn]] void refuse_attribute(const std::string& name, bool change) {
  const nb::object message =
      nb::module_::import_("quire.habits").attr("sampling_attribute")(name, field_names(), change);
  throw nb::attribute_error(nb::cast<std::string>(message).c_str());
}

// Returns what a field takes, for an error.
const char* kind_of(const bool& /*field*/) { return "True or False"; }
const char* kind_of(const double& /*field*/) { return "a number"; }
const char* kind_of(const std::int32_t& /*field*/) { return "an int"; }
template <class Number>
const char* kind_of(const std::optional<Number>& /*field*/) {
  return "an int or None";
}
const char* kind_of(const std::vector<std::string>& /*field*/) {
  return "a str, a list of str, or None";
}
const char* kind_of(const std::vector<TokenId>& /*field*/) {
  return "a list of token ids (int), or None";
}
const char* kind_of(const std::vector<std::pair<TokenId, double>>& /*field*/) {
  return "a dict of token ids and numbers, or None";
}

bool is_whole(nb::handle value) { return nb::isinstance<nb::int_>(value) && !is_bool(value); }

bool holds_ids(const nb::list& list) {
  bool all = true;
  for (const nb::handle item : list) {
    all = all && is_whole(item);
  }
  return all;
}

bool holds_ids_and_numbers(const nb::dict& dict) {
  bool all = true;
  for (const auto& [id, weight] : dict) {
    all = all && (is_whole(id) || nb::isinstance<nb::str>(id)) &&
          (is_whole(weight) || nb::isinstance<nb::float_>(weight));
  }
  return all;
}

// Returns true if `value` is of the kind that a field takes, so that its size is the trouble.
bool is_of_kind(const SamplingField& field, nb::handle value) {
  return std::visit(
      [value]<class Value>(Value SamplingParams::* /*member*/) {
        if constexpr (std::is_same_v<Value, std::vector<TokenId>>) {
          return nb::isinstance<nb::list>(value) && holds_ids(nb::borrow<nb::list>(value));
        } else if constexpr (std::is_same_v<Value, std::vector<std::pair<TokenId, double>>>) {
          return nb::isinstance<nb::dict>(value) &&
                 holds_ids_and_numbers(nb::borrow<nb::dict>(value));
        } else if constexpr (std::is_same_v<Value, bool> ||
                             std::is_same_v<Value, std::vector<std::string>>) {
          return false;
        } else {
          return is_whole(value);
        }
      },
      field.member);
}

// Refuses a value that a field cannot hold: KindError, a TypeError, for another kind of thing;
// ValueError for a number that is out of range.
[[noreturn]] void refuse(const SamplingField& field, nb::handle value) {
  const char* const kind =
      std::visit([](auto member) { return kind_of(SamplingParams().*member); }, field.member);
  const nb::module_ errors = nb::module_::import_("quire.errors");
  const bool right_kind = is_of_kind(field, value);
  const nb::object message = nb::module_::import_("quire.habits")
                                 .attr("refused_sampling")(field.name, value, kind, right_kind);
  const nb::object error = errors.attr(right_kind ? "ValueError" : "KindError")(message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

// Binds what says how to change a value that cannot change, and what makes a changed copy.
void bind_immutable(nb::class_<SamplingParams>& cls) {
  const auto refuse_change = [](const SamplingParams& /*self*/, const std::string& name) {
    refuse_attribute(name, /*change=*/true);
  };
  cls.def("__setattr__",
          [refuse_change](const SamplingParams& self, const std::string& name,
                          const nb::object& /*value*/) { refuse_change(self, name); });
  cls.def("__delattr__", refuse_change);
  cls.def("__getattr__", [](const SamplingParams& /*self*/, const std::string& name) -> nb::object {
    refuse_attribute(name, /*change=*/false);
  });
  const auto replace = [](const SamplingParams& self, const nb::kwargs& fields) {
    SamplingParams changed = self;
    set_fields(changed, fields);
    return changed;
  };
  cls.def("replace", replace, "Returns a copy with other values of the fields that are named.");
  cls.def("__replace__", replace);
  cls.def(
      "to_dict",
      [](const SamplingParams& self) {
        nb::dict fields;
        for (const SamplingField& field : sampling_fields()) {
          fields[field.name] = get_field(self, field);
        }
        return fields;
      },
      "Returns all fields as a plain dict; SamplingParams(**it) is equal.");
}

}  // namespace

void set_fields(SamplingParams& params, const nb::dict& fields) {
  for (const auto& item : fields) {
    const auto name = nb::cast<std::string>(nb::str(item.first));
    const nb::handle value = item.second;
    const auto known = sampling_fields();
    const auto field = std::ranges::find(known, std::string_view(name), &SamplingField::name);
    if (field == known.end()) {
      refuse_unknown(name);
    }
    try {
      set_field(params, *field, value);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const nb::python_error& error) {
      if (error.matches(PyExc_MemoryError)) {
        throw;
      }
      refuse(*field, value);
    } catch (const std::exception&) {
      PyErr_Clear();
      refuse(*field, value);
    }
  }
  unwrap(params.validate());
}

SamplingParams to_params(const nb::handle& object) {
  if (nb::isinstance<SamplingParams>(object)) {
    return nb::cast<SamplingParams>(object);
  }
  SamplingParams params;
  if (object.is_none()) {
    return params;
  }
  if (!nb::isinstance<nb::dict>(object)) {
    throw nb::type_error("sampling_params must be a SamplingParams, a dict or None");
  }
  set_fields(params, nb::borrow<nb::dict>(object));
  return params;
}

std::vector<SamplingParams> to_params_list(const nb::list& objects) {
  std::vector<SamplingParams> params;
  for (const nb::handle object : objects) {
    params.push_back(to_params(object));
  }
  return params;
}

void bind_options(nb::module_& module) {
  nb::class_<LLMOptions> options(module, "Options");
  options.def(nb::init<>());
  nb::list names;
  for (const LLMField& field : llm_fields()) {
    names.append(field.name);
    if (std::holds_alternative<std::string LLMOptions::*>(field.member) &&
        std::get<std::string LLMOptions::*>(field.member) == &LLMOptions::store) {
      options.def_prop_rw(
          field.name, [](const LLMOptions& o) { return nb::bytes(o.store.data(), o.store.size()); },
          [](LLMOptions& o, const nb::bytes& path) { o.store = to_path(path); });
      continue;
    }
    if (std::string_view(field.name) == "chat_template") {
      options.def_prop_rw(
          field.name, [](const LLMOptions& o) { return or_none(o.chat_template); },
          [](LLMOptions& o, std::string_view text) { o.chat_template = text; });
      continue;
    }
    if (std::string_view(field.name) == "speculate") {
      options.def_prop_rw(
          field.name, [](const LLMOptions& o) { return or_none(o.speculate); },
          [](LLMOptions& o, std::string_view text) { o.speculate = text; });
      continue;
    }
    std::visit([&](auto member) { options.def_rw(field.name, member); }, field.member);
  }
  options.attr("fields") = names;
  options.def("draft_with", [](LLMOptions& o, nb::callable propose) {
    o.drafter = std::make_shared<PythonDrafter>(std::move(propose));
  });
  options.def("log_to", [](LLMOptions& o, const LogRecords& records) { o.log = records.sink(); });
  options.def("pressure_to", [](LLMOptions& o, const LogRecords& records) {
    o.on_pressure = [sink = records.sink()](const Pressure& pressure) {
      if (const auto text = to_json(pressure); text.ok()) {
        sink(LogLevel::kInfo, *text);
      }
    };
  });
}

void bind_params(nb::module_& module) {
  nb::class_<RequestOptions>(module, "RequestOptions")
      .def(nb::init<>())
      .def(nb::init<const RequestOptions&>())
      .def_rw("session", &RequestOptions::session)
      .def_rw("salt", &RequestOptions::salt)
      .def_rw("deltas", &RequestOptions::deltas)
      .def_rw("explain", &RequestOptions::explain)
      .def_rw("priority", &RequestOptions::priority)
      .def_rw("deadline_seconds", &RequestOptions::deadline_seconds, nb::arg().none())
      .def_rw("tenant", &RequestOptions::tenant)
      .def_rw("followers", &RequestOptions::followers)
      .def_rw("follows", &RequestOptions::follows)
      .def("wake", [](RequestOptions& options, const Wakeups& wakeups, std::uint64_t key) {
        options.notify = wakeups.notifier(key);
      });
  nb::class_<SamplingParams> cls(
      module, "SamplingParams",
      "How the next token is chosen. Order: logit bias and penalties, temperature, top-k, top-p on "
      "what is left, min-p against the most likely token. temperature=0 is greedy. ValueError for "
      "an unknown name and a value out of range.");
  const auto make = [](SamplingParams* self, const nb::dict& fields) {
    new (self) SamplingParams();
    set_fields(*self, fields);
  };
  cls.def("__init__", [make](SamplingParams* self, const nb::args& values,
                             const nb::kwargs& named) { make(self, by_name(values, named)); });
  for (const SamplingField& field : sampling_fields()) {
    cls.def_prop_ro(
        field.name, [&field](const SamplingParams& p) { return get_field(p, field); }, field.help);
  }
  bind_immutable(cls);
  cls.def("__repr__", &repr_of)
      .def(
          "__eq__",
          [](const SamplingParams& a, const SamplingParams& b) { return said(a).equal(said(b)); },
          nb::is_operator())
      .def("__getstate__", &said)  // for copy and pickle
      .def("__setstate__", make);
  cls.attr("__hash__") = nb::none();
  cls.attr("__signature__") = signature();
}

}  // namespace quire::python
