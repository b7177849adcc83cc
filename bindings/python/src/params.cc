#include "params.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.h"
#include "quire/llm.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

// Fields whose Python form is not their C++ form.
std::vector<std::string> to_strings(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) {
    return {nb::cast<std::string>(value)};
  }
  return value.is_none() ? std::vector<std::string>() : nb::cast<std::vector<std::string>>(value);
}

std::vector<TokenId> to_ids(nb::handle value) {
  return value.is_none() ? std::vector<TokenId>() : nb::cast<std::vector<TokenId>>(value);
}

std::vector<std::pair<TokenId, double>> to_bias(nb::handle value) {
  std::vector<std::pair<TokenId, double>> bias;
  if (!value.is_none()) {
    for (const auto& [id, weight] : nb::cast<nb::dict>(value)) {  // JSON keys are strings
      const nb::object key = nb::isinstance<nb::str>(id) ? nb::int_(id) : nb::borrow(id);
      bias.emplace_back(nb::cast<TokenId>(key), nb::cast<double>(nb::float_(weight)));
    }
  }
  return bias;
}

template <class Value>
nb::object from_list(const std::vector<Value>& values) {
  return values.empty() ? nb::none() : nb::object(nb::cast(values));
}

nb::object from_bias(const std::vector<std::pair<TokenId, double>>& bias) {
  nb::dict dict;
  for (const auto& [id, weight] : bias) {
    dict[nb::int_(id)] = weight;
  }
  return bias.empty() ? nb::none() : nb::object(dict);
}

// Calls visit(name, getter, setter) for each field, in the order of the documentation.
template <class Visit>
void for_each_field(Visit visit) {
  const auto plain = [&](const char* name, auto member) {
    using Value = std::remove_reference_t<decltype(std::declval<SamplingParams>().*member)>;
    visit(
        name, [member](const SamplingParams& p) { return nb::cast(p.*member); },
        [member](SamplingParams& p, nb::handle v) { p.*member = nb::cast<Value>(v); });
  };
  plain("temperature", &SamplingParams::temperature);
  plain("top_p", &SamplingParams::top_p);
  plain("top_k", &SamplingParams::top_k);
  plain("min_p", &SamplingParams::min_p);
  plain("repetition_penalty", &SamplingParams::repetition_penalty);
  plain("presence_penalty", &SamplingParams::presence_penalty);
  plain("frequency_penalty", &SamplingParams::frequency_penalty);
  plain("max_tokens", &SamplingParams::max_tokens);
  plain("min_tokens", &SamplingParams::min_tokens);
  visit(
      "stop", [](const SamplingParams& p) { return from_list(p.stop); },
      [](SamplingParams& p, nb::handle v) { p.stop = to_strings(v); });
  visit(
      "stop_token_ids", [](const SamplingParams& p) { return from_list(p.stop_token_ids); },
      [](SamplingParams& p, nb::handle v) { p.stop_token_ids = to_ids(v); });
  plain("ignore_eos", &SamplingParams::ignore_eos);
  plain("seed", &SamplingParams::seed);
  plain("logprobs", &SamplingParams::logprobs);
  visit(
      "logit_bias", [](const SamplingParams& p) { return from_bias(p.logit_bias); },
      [](SamplingParams& p, nb::handle v) { p.logit_bias = to_bias(v); });
}

// The fields that are not as by default.
nb::dict said(const SamplingParams& params) {
  nb::dict fields;
  for_each_field([&](const char* name, auto get, auto) {
    const nb::object value = get(params);
    if (!value.equal(get(SamplingParams()))) {
      fields[name] = value;
    }
  });
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

// What inspect.signature and help show of the constructor.
nb::object signature() {
  const nb::module_ inspect = nb::module_::import_("inspect");
  const nb::object parameter = inspect.attr("Parameter");
  nb::list parameters;
  for_each_field([&](const char* name, auto get, auto) {
    parameters.append(parameter(name, parameter.attr("POSITIONAL_OR_KEYWORD"),
                                nb::arg("default") = get(SamplingParams())));
  });
  return inspect.attr("Signature")(parameters);
}

// Arguments by name, those by position in the order of the signature.
nb::dict by_name(const nb::args& values, const nb::kwargs& named) {
  nb::dict fields;
  std::size_t next = 0;
  for_each_field([&](const char* name, auto, auto) {
    if (next < values.size()) {
      fields[name] = values[next++];
    }
  });
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

// Refuses a value that a field cannot hold: TypeError for another kind of thing, ValueError for a
// number or a list whose content is the trouble.
[[noreturn]] void refuse(const std::string& name, nb::handle value) {
  const std::string message =
      "sampling parameter '" + name + "' cannot be " + nb::cast<std::string>(nb::repr(value));
  const bool right_kind = nb::isinstance<nb::int_>(value) || nb::isinstance<nb::float_>(value) ||
                          nb::isinstance<nb::list>(value) || nb::isinstance<nb::dict>(value);
  if (right_kind) {
    throw nb::value_error(message.c_str());
  }
  throw nb::type_error(message.c_str());
}

}  // namespace

void set_fields(SamplingParams& params, const nb::dict& fields) {
  for (const auto& item : fields) {
    const auto name = nb::cast<std::string>(nb::str(item.first));
    const nb::handle value = item.second;
    bool known = false;
    for_each_field([&](const char* field, auto, auto set) {
      if (name != field) {
        return;
      }
      known = true;
      try {
        set(params, value);
      } catch (const std::exception&) {
        PyErr_Clear();
        refuse(name, value);
      }
    });
    if (!known) {
      throw nb::value_error(("unknown sampling parameter '" + name + "'").c_str());
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

void bind_params(nb::module_& module) {
  nb::class_<RequestOptions>(module, "RequestOptions")
      .def(nb::init<>())
      .def_rw("session", &RequestOptions::session)
      .def_rw("salt", &RequestOptions::salt);
  nb::class_<SamplingParams> cls(
      module, "SamplingParams",
      "How the next token is chosen. Order: logit bias and penalties, temperature, top-k, top-p on "
      "what is left, min-p against the most likely token. temperature=0 is greedy.");
  const auto make = [](SamplingParams* self, const nb::dict& fields) {
    new (self) SamplingParams();
    set_fields(*self, fields);
  };
  cls.def("__init__", [make](SamplingParams* self, const nb::args& values,
                             const nb::kwargs& named) { make(self, by_name(values, named)); });
  for_each_field([&](const char* name, auto get, auto) {
    cls.def_prop_ro(name, [get](const SamplingParams& p) { return get(p); });
  });
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
