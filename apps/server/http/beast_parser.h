// FillingParser: fills a Request from Beast's parser. Part of http.cc, which alone includes it.
#pragma once

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/optional/optional.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "http/head.h"
#include "http/parser.h"
#include "message.h"

namespace quire::server {

namespace beast = boost::beast;

inline std::string lower_case(beast::string_view text) {
  std::string result(text.data(), text.size());
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return result;
}

// The error for a body above the limit. A chunk counts with its declared size before its bytes
// come.
inline constexpr auto kTooLarge = beast::http::error::body_limit;

// Fills a request from Beast's parser. Trailers are checked and dropped.
class FillingParser final : public beast::http::basic_parser<true> {
 public:
  Request request;
  std::string target;
  bool http11 = true;

 private:
  using View = beast::string_view;
  using Field = beast::http::field;

  void on_request_impl(beast::http::verb, View method, View target_text, int version,
                       boost::system::error_code& error) override {
    request.method = {method.data(), method.size()};
    target = {target_text.data(), target_text.size()};
    http11 = version == 11;
    error = {};
  }
  void on_response_impl(int, View, int, boost::system::error_code&) override {}
  void on_field_impl(Field, View name, View value, boost::system::error_code& error) override {
    if (!is_header_done()) {
      request.headers.push_back({lower_case(name), std::string(value.data(), value.size())});
    }
    error = {};
  }
  void on_header_impl(boost::system::error_code& error) override { error = {}; }
  void on_body_init_impl(const boost::optional<std::uint64_t>& length,
                         boost::system::error_code& error) override {
    request.body.reserve(std::min<std::uint64_t>(length.value_or(0), std::uint64_t{64} << 10));
    error = {};
  }
  std::size_t on_body_impl(View body, boost::system::error_code& error) override {
    request.body.append(body.data(), body.size());
    error = {};
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, View, boost::system::error_code& error) override {
    error = {};
  }
  std::size_t on_chunk_body_impl(std::uint64_t, View body,
                                 boost::system::error_code& error) override {
    request.body.append(body.data(), body.size());
    error = {};
    return body.size();
  }
  void on_finish_impl(boost::system::error_code& error) override { error = {}; }
};

inline Refusal refusal_of(const boost::system::error_code& error) {
  if (error == kTooLarge) {
    return {.status = 413, .code = "body_too_large", .message = "the body is too large"};
  }
  if (error == beast::http::error::bad_version) {
    return {.status = 505, .code = "http_version", .message = "only HTTP/1.1 is spoken here"};
  }
  return {.message = "not HTTP: " + error.message()};
}

}  // namespace quire::server
