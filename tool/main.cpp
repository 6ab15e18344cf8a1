// SPDX-License-Identifier: Apache-2.0
// Parses arguments, calls one command, prints what it answers.
// Exit codes: 0 done; 1 refused, or the compared plans differ; 2 the command line is wrong.
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "commands.h"

namespace anabranch::tool {
namespace {

int print(const Result<std::string>& answer) {
  if (!answer) {
    std::fprintf(stderr, "anabranch: %s\n", answer.error().message().c_str());
    return 1;
  }
  std::fputs(answer->c_str(), stdout);
  return 0;
}

int print(const Result<Comparison>& answer) {
  if (!answer) return print(Result<std::string>(answer.error()));
  std::fputs(answer->text.c_str(), stdout);
  return answer->equal ? 0 : 1;
}

// What the commands of the line are told; CLI11 keeps references to it while it parses.
struct Arguments {
  std::string path, other_path;
  std::string out_path = "trace.json";
  bool as_json = false;
  bool strict = false;
  RunOptions run;
};

void add_run_options(CLI::App& command, Arguments& arguments) {
  command.add_option("file", arguments.path, "a plan file")->required();
  command.add_option("-n,--launches", arguments.run.launches, "how often to launch")
      ->capture_default_str();
  command.add_option("--lanes", arguments.run.lanes, "threads; 0: as many as cores")
      ->capture_default_str();
  command
      .add_option("--max-memory", arguments.run.max_memory_bytes,
                  "bytes that arena and buffers may take")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
}

// Each command sets `exit_code` when CLI11 comes upon it.
void add_commands(CLI::App& app, Arguments& arguments, int& exit_code) {
  CLI::App& doctor_command = *app.add_subcommand("doctor", "what is on, what is off and why");
  doctor_command.add_flag("--json", arguments.as_json, "as JSON");
  doctor_command.callback(
      [&] { exit_code = print(Result<std::string>(doctor(arguments.as_json))); });

  CLI::App& show_command = *app.add_subcommand("show", "a plan file or a trace as text");
  show_command.add_option("file", arguments.path, "a plan file or a trace")->required();
  show_command.callback([&] { exit_code = print(show(arguments.path)); });

  CLI::App& check_command = *app.add_subcommand("check", "read, verify and race-check a plan file");
  check_command.add_option("file", arguments.path, "a plan file")->required();
  check_command.add_flag("--strict", arguments.strict, "races that have a remedy are errors too");
  check_command.callback([&] { exit_code = print(check(arguments.path, arguments.strict)); });

  CLI::App& run_command = *app.add_subcommand("run", "launch a plan file on the host device");
  add_run_options(run_command, arguments);
  run_command.add_flag("--null-regions", arguments.run.null_regions, "regions that do nothing");
  run_command.callback([&] { exit_code = print(run(arguments.path, arguments.run)); });

  CLI::App& trace_command = *app.add_subcommand("trace", "launch with null regions, write a trace");
  add_run_options(trace_command, arguments);
  trace_command.add_option("-o,--out", arguments.out_path, "the file to write")
      ->capture_default_str();
  trace_command.callback([&] {
    arguments.run.null_regions = true;
    exit_code = print(trace(arguments.path, arguments.run, arguments.out_path));
  });

  CLI::App& compare_command = *app.add_subcommand("compare", "where two plan files differ");
  compare_command.add_option("first", arguments.path, "a plan file")->required();
  compare_command.add_option("second", arguments.other_path, "another")->required();
  compare_command.callback(
      [&] { exit_code = print(compare(arguments.path, arguments.other_path)); });
}

int run_command_line(int argc, char** argv) {
  CLI::App app("A window onto Anabranch: plans, recordings and traces.", "anabranch");
  app.set_version_flag("--version", "anabranch " ANABRANCH_VERSION);
  Arguments arguments;
  int exit_code = 0;
  bool cmake_folder = false;
  app.add_flag("--cmakedir", cmake_folder, "where find_package(anabranch) finds this installation");
  add_commands(app, arguments, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (cmake_folder) {
    Result<std::string> folder = find_cmake_folder();
    return print(folder ? Result<std::string>(*folder + "\n") : folder);
  }
  if (!app.get_subcommands().empty()) return exit_code;
  std::fputs(app.help().c_str(), stderr);
  return 2;
}

}  // namespace
}  // namespace anabranch::tool

int main(int argc, char** argv) { return anabranch::tool::run_command_line(argc, argv); }
