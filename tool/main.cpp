// SPDX-License-Identifier: Apache-2.0
// Parses arguments, calls one command, prints what it answers. Exit codes are those of
// exit_codes.h.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "exit_codes.h"
#include "numbers.h"

namespace anabranch::tool {
namespace {

constexpr const char* kFooter =
    "A FILE of - is standard input.\n"
    "\n"
    "Exit codes:\n"
    "  0  done; check: the plan is right; compare: the plans are equal\n"
    "  1  check: the plan is refused, or has a report that is an error; compare: the plans differ\n"
    "  2  the command line is wrong\n"
    "  3  a file cannot be read, or is no plan or trace; output cannot be written\n"
    "  4  other commands: a plan is refused, or asks for what is not there\n"
    "\n"
    "Examples:\n"
    "  anabranch check my.plan\n"
    "  anabranch show --html my.plan > my.html\n"
    "  anabranch run my.plan --null-regions -n 1000 --max-memory 4g\n"
    "  anabranch trace my.plan -o trace.json && anabranch show trace.json";

void complain(const std::string& message) {
  std::fprintf(stderr, "anabranch: %s\n", message.c_str());
}

// A full device tells only when the last bytes reach it.
Exit print_text(const std::string& text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && written) return Exit::kDone;
  complain(fmt::format("write the output: {} [E0501]", std::strerror(errno)));
  return Exit::kUnusable;
}

bool is_about_a_file(StatusCode code) {
  return code == StatusCode::kFileUnreadable || code == StatusCode::kFileMalformed ||
         code == StatusCode::kFileVersion;
}

Exit print(const Result<std::string>& answer, Exit refused = Exit::kRefused) {
  if (answer) return print_text(*answer);
  complain(answer.error().message());
  return is_about_a_file(answer.error().code()) ? Exit::kUnusable : refused;
}

Exit print(const Result<Comparison>& answer) {
  if (!answer) return print(Result<std::string>(answer.error()));
  const Exit printed = print_text(answer->text);
  return printed == Exit::kDone && !answer->equal ? Exit::kNo : printed;
}

// What the commands of the line are told; CLI11 keeps references to it while it parses.
struct Arguments {
  std::string path, other_path;
  std::string out_path = "trace.json";
  bool as_json = false;
  bool as_page = false;
  bool strict = false;
  RunOptions run;
};

void take(const char* option, const std::string& text, std::optional<std::uint64_t> value,
          std::uint64_t most, const std::function<void(std::uint64_t)>& set) {
  if (value) return set(*value);
  throw CLI::ValidationError(
      option, fmt::format("'{}' is no whole number from 0 to {}", printable_text(text), most));
}

void add_count(CLI::App& command, const char* name, const char* option, std::uint32_t& to,
               const char* about) {
  const auto parse = [option, &to](const std::string& text) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    take(option, text, parse_count(text, kMost), kMost,
         [&to](std::uint64_t value) { to = static_cast<std::uint32_t>(value); });
  };
  command.add_option_function<std::string>(name, parse, about)->default_str(fmt::format("{}", to));
}

void add_run_options(CLI::App& command, Arguments& arguments) {
  RunOptions& run = arguments.run;
  command.add_option("file", arguments.path, "a plan file")->required();
  add_count(command, "-n,--launches", "--launches", run.launches, "how often to launch");
  add_count(command, "--lanes", "--lanes", run.lanes, "threads; 0: as many as cores");
  const auto parse = [&run](const std::string& text) {
    take("--max-memory", text, parse_bytes(text), std::numeric_limits<std::uint64_t>::max(),
         [&run](std::uint64_t value) { run.max_memory_bytes = value; });
  };
  command
      .add_option_function<std::string>("--max-memory", parse,
                                        "bytes that arena and buffers may take; 4g: 4 GiB")
      ->default_str(fmt::format("{}", run.max_memory_bytes));
}

// Each command sets `exit` when CLI11 comes upon it.
void add_commands(CLI::App& app, Arguments& arguments, Exit& exit) {
  CLI::App& doctor_command = *app.add_subcommand("doctor", "what is on, what is off and why");
  doctor_command.add_flag("--json", arguments.as_json, "as JSON");
  doctor_command.callback([&] { exit = print_text(doctor(arguments.as_json)); });

  CLI::App& show_command = *app.add_subcommand("show", "a plan file or a trace as text");
  show_command.add_option("file", arguments.path, "a plan file or a trace")->required();
  show_command.add_flag("--html", arguments.as_page, "a plan file as a page for browsers");
  show_command.callback(
      [&] { exit = print(arguments.as_page ? show_page(arguments.path) : show(arguments.path)); });

  CLI::App& check_command = *app.add_subcommand("check", "read, verify and race-check a plan file");
  check_command.add_option("file", arguments.path, "a plan file")->required();
  check_command.add_flag("--strict", arguments.strict, "races that have a remedy are errors too");
  check_command.callback([&] { exit = print(check(arguments.path, arguments.strict), Exit::kNo); });

  CLI::App& run_command = *app.add_subcommand("run", "launch a plan file on the host device");
  add_run_options(run_command, arguments);
  run_command.add_flag("--null-regions", arguments.run.null_regions, "regions that do nothing");
  run_command.callback([&] { exit = print(run(arguments.path, arguments.run)); });

  CLI::App& trace_command = *app.add_subcommand("trace", "launch with null regions, write a trace");
  add_run_options(trace_command, arguments);
  trace_command.add_option("-o,--out", arguments.out_path, "the file to write")
      ->capture_default_str();
  trace_command.callback([&] {
    arguments.run.null_regions = true;
    exit = print(trace(arguments.path, arguments.run, arguments.out_path));
  });

  CLI::App& compare_command = *app.add_subcommand("compare", "where two plan files differ");
  compare_command.add_option("first", arguments.path, "a plan file")->required();
  compare_command.add_option("second", arguments.other_path, "another")->required();
  compare_command.callback([&] { exit = print(compare(arguments.path, arguments.other_path)); });
}

// Help and version are what was asked for, and are printed like all else; the rest is a complaint.
Exit print_parse_result(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() != 0) {
    app.exit(error);
    return Exit::kUsage;
  }
  std::ostringstream text;
  app.exit(error, text, std::cerr);
  return print_text(text.str());
}

Exit run_command_line(int argc, char** argv) {
  CLI::App app("A window onto Anabranch: plans, recordings and traces.", "anabranch");
  app.set_version_flag("--version", fmt::format("anabranch {}", kVersion));
  app.footer(kFooter);
  Arguments arguments;
  Exit exit = Exit::kDone;
  bool cmake_folder = false;
  app.add_flag("--cmakedir", cmake_folder, "where find_package(anabranch) finds this installation");
  add_commands(app, arguments, exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return print_parse_result(app, error);
  }
  if (cmake_folder) {
    Result<std::string> folder = find_cmake_folder();
    return print(folder ? Result<std::string>(*folder + "\n") : folder);
  }
  if (!app.get_subcommands().empty()) return exit;
  std::fputs(app.help().c_str(), stderr);
  return Exit::kUsage;
}

}  // namespace
}  // namespace anabranch::tool

int main(int argc, char** argv) {
  using anabranch::tool::Exit;
  try {
    return static_cast<int>(anabranch::tool::run_command_line(argc, argv));
  } catch (const std::bad_alloc&) {
    std::fputs("anabranch: no memory is left. Launch less often (-n), or free some.\n", stderr);
    return static_cast<int>(Exit::kRefused);
  }
}
