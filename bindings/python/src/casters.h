// Converts texts, lists and the like between Python and C++, in place of nanobind's own headers
// <nanobind/stl/...>. Those end the process when memory for a list or a text is refused. Here
// std::bad_alloc leaves from_python() and becomes an exception of Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/detail/nb_list.h>
#include <nanobind/stl/detail/nb_optional.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace nanobind::detail {

// Returns false for a value that does not convert, and throws where Python was refused memory.
inline bool not_converted() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_MemoryError) != 0) {
    throw python_error();
  }
  PyErr_Clear();
  return false;
}

// Converts `src` into `value`; false if it is something else.
template <class Value>
bool convert_into(Value& value, handle src, std::uint32_t flags, cleanup_list* cleanup) {
  make_caster<Value> caster;
  if (!caster.from_python(src, flags_for_local_caster<Value>(flags), cleanup) ||
      !caster.template can_cast<Value>()) {
    return false;
  }
  value = caster.operator cast_t<Value>();
  return true;
}

// Takes a str; a std::string_view refers to its bytes.
template <class Text>
struct text_caster {
  NB_TYPE_CASTER(Text, const_name("str"))

  bool from_python(handle src, std::uint32_t /*flags*/, cleanup_list* /*cleanup*/) {
    if (PyUnicode_Check(src.ptr()) == 0) {
      return false;
    }
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(src.ptr(), &size);
    if (text == nullptr) {
      return not_converted();
    }
    value = Text(text, static_cast<std::size_t>(size));
    return true;
  }
  static handle from_cpp(const Text& text, rv_policy /*policy*/,
                         cleanup_list* /*cleanup*/) noexcept {
    return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  }
};

template <>
struct type_caster<std::string> : text_caster<std::string> {};
template <>
struct type_caster<std::string_view> : text_caster<std::string_view> {};

// Takes any sequence but a text, as nanobind does.
template <class Entry>
struct type_caster<std::vector<Entry>> : list_caster<std::vector<Entry>, Entry> {
  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) {
    std::vector<Entry>& entries = this->value;
    entries.clear();
    PyObject* const given = src.ptr();
    if (PyUnicode_Check(given) != 0 || PyBytes_Check(given) != 0 || PySequence_Check(given) == 0) {
      return false;
    }
    // The length is read anew each time: converting an entry may run Python that changes the list.
    Py_ssize_t size = PySequence_Size(given);
    if (size < 0) {
      return not_converted();
    }
    entries.reserve(static_cast<std::size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i, size = PySequence_Size(given)) {
      const object item = steal(PySequence_GetItem(given, i));
      Entry entry{};
      if (!item.is_valid()) {
        return not_converted();
      }
      if (!convert_into(entry, item, flags, cleanup)) {
        return false;
      }
      entries.push_back(std::move(entry));
    }
    return true;
  }
};

template <class Value>
struct remove_opt_mono<std::optional<Value>> : remove_opt_mono<Value> {};

template <class Value>
struct has_arg_defaults<std::optional<Value>> : std::true_type {};

template <class Value>
struct type_caster<std::optional<Value>> : optional_caster<std::optional<Value>> {
  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) {
    this->value.reset();
    return src.is_none() || convert_into(this->value.emplace(), src, flags, cleanup);
  }
};

// Takes the first alternative that converts.
template <class... Values>
struct type_caster<std::variant<Values...>> {
  NB_TYPE_CASTER(std::variant<Values...>, union_name(make_caster<Values>::Name...))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) {
    return (taken<Values>(src, flags, cleanup) || ...);
  }
  static handle from_cpp(const std::variant<Values...>& from, rv_policy policy,
                         cleanup_list* cleanup) noexcept {
    return std::visit(
        [&](const auto& held) {
          return make_caster<std::decay_t<decltype(held)>>::from_cpp(held, policy, cleanup);
        },
        from);
  }

 private:
  template <class Alternative>
  bool taken(handle src, std::uint32_t flags, cleanup_list* cleanup) {
    Alternative held{};
    if (!convert_into(held, src, flags, cleanup)) {
      return false;
    }
    value = std::move(held);
    return true;
  }
};

// A tuple or list of as many entries as `Values`, in their order.
template <class Tuple, class... Values>
struct entries_caster {
  NB_TYPE_CASTER(Tuple,
                 const_name("tuple[") + concat(make_caster<Values>::Name...) + const_name("]"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) {
    if (PyTuple_Check(src.ptr()) == 0 && PyList_Check(src.ptr()) == 0) {
      return false;
    }
    const object items = steal(PySequence_Tuple(src.ptr()));
    if (!items.is_valid()) {
      return not_converted();
    }
    return PyTuple_Size(items.ptr()) == sizeof...(Values) &&
           all(items, flags, cleanup, std::index_sequence_for<Values...>());
  }
  static handle from_cpp(const Tuple& from, rv_policy policy, cleanup_list* cleanup) noexcept {
    return made(from, policy, cleanup, std::index_sequence_for<Values...>());
  }

 private:
  template <std::size_t... I>
  bool all(const object& items, std::uint32_t flags, cleanup_list* cleanup,
           std::index_sequence<I...> /*indices*/) {
    return (convert_into(std::get<I>(value), PyTuple_GetItem(items.ptr(), I), flags, cleanup) &&
            ...);
  }
  template <std::size_t... I>
  static handle made(const Tuple& from, rv_policy policy, cleanup_list* cleanup,
                     std::index_sequence<I...> /*indices*/) noexcept {
    const object entries[] = {
        steal(make_caster<Values>::from_cpp(std::get<I>(from), policy, cleanup))...};
    PyObject* const tuple = PyTuple_New(sizeof...(Values));
    bool whole = tuple != nullptr;
    for (std::size_t i = 0; whole && i < sizeof...(Values); ++i) {
      whole = entries[i].is_valid() && PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i),
                                                       object(entries[i]).release().ptr()) == 0;
    }
    if (!whole) {
      Py_XDECREF(tuple);
      return {};
    }
    return tuple;
  }
};

template <class... Values>
struct type_caster<std::tuple<Values...>> : entries_caster<std::tuple<Values...>, Values...> {};

template <class First, class Second>
struct type_caster<std::pair<First, Second>>
    : entries_caster<std::pair<First, Second>, First, Second> {};

}  // namespace nanobind::detail
