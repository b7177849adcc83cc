#include "http/render_head.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <string_view>

#include "http/parser.h"
#include "message.h"

namespace quire::server {
namespace {

void append_field(std::string& to, std::string_view name, std::string_view value) {
  const auto append = [&to](std::string_view text) {
    std::ranges::copy_if(text, std::back_inserter(to),
                         [](unsigned char c) { return (c >= ' ' && c != 0x7F) || c == '\t'; });
  };
  append(name);
  to += ": ";
  append(value);
  to += "\r\n";
}

bool has_field(const Response& response, std::string_view name) {
  return std::ranges::find(response.headers, name, &HeaderField::name) != response.headers.end();
}

}  // namespace

bool has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

std::string render_head(const Response& response, const HeadFacts& facts) {
  std::string head;
  head.reserve(512);
  head += "HTTP/1.1 ";
  head += std::to_string(response.status);
  head += ' ';
  head += reason_of(response.status);
  head += "\r\n";
  append_field(head, "date", facts.date);
  append_field(head, "x-request-id", facts.request_id);
  append_field(head, "request-id", facts.request_id);
  if (!has_field(response, "cache-control")) {
    append_field(head, "cache-control", "no-store");
  }
  if (!response.content_type.empty()) {
    append_field(head, "content-type", response.content_type);
  }
  for (const HeaderField& field : response.headers) {
    append_field(head, field.name, field.value);
  }
  if (facts.content_length) {
    append_field(head, "content-length", std::to_string(*facts.content_length));
  }
  if (facts.chunked) {
    append_field(head, "transfer-encoding", "chunked");
  }
  if (facts.close) {
    append_field(head, "connection", "close");
  }
  head += "\r\n";
  return head;
}

void append_chunk(std::string& to, std::string_view bytes) {
  if (bytes.empty()) {
    return;
  }
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, bytes.size(), 16).ptr;
  to.append(digits, end);
  to += "\r\n";
  to += bytes;
  to += "\r\n";
}

}  // namespace quire::server
