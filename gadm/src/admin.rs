//! The subcommands of `gadm` and where each is carried out.

use crate::policy::{account, document, partition, qos, quota, reservation, user};
use crate::{
    bill, controller, export_trace, gpu, idle, import, job, node, pages, sandbox, share,
    slurm_names, ssh_config, token, topology, webhook,
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, command_line};
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  gadm node drain node7 --reason 'fan replaced on Monday'
  gadm node resume node7
  gadm gpu quarantine node7 3 --reason 'wrong sums since Monday'
  gadm job update 17 TimeLimit=4:00:00
  gadm idle report --warn-after 30:00 --act-after 1:00:00
  gadm job hold 17 98_5
  gadm token node --role compute
  gadm token user ada --scope read,submit --expires 30d --gpu-hours 200
  gadm account add vision parent=research shares=10 guaranteed=h100:16,gpu:32 limit=64
  gadm user add ada account=vision default=yes
  gadm quota list
  gadm share -u ada
  gadm bill close 2026-10
  gadm bill correct --account vision --amount -12.50 --reason 'node7 was slow'
  gadm qos add urgent priority=100 preempt=scavenger maxjobspu=2
  gadm reservation add cooling start=2027-03-01T06:00 duration=8:00:00 nodes=ALL flags=MAINT
  gadm reload --dry-run
  gadm import slurm --conf /etc/slurm/slurm.conf --out /root/from-slurm
  gadm export-trace --from now-30days -o jobs.csv --cluster pool.toml
  gadm backup /var/backups/gpupool.db
  eval $(gadm slurm-names ~/slurm-names)
  gadm ssh-config >> ~/.ssh/config; ssh gpupool-17

Owners may hold, release, requeue and update their own jobs, coordinators edit their accounts;
the rest is for operators on the controller's host.";

#[derive(Parser)]
#[command(name = "gadm", version, about = "Administer the pool", after_help = EXAMPLES, subcommand_required = true,
          arg_required_else_help = true)]
struct AdminArgs {
    #[command(subcommand)]
    what: AdminCommand,
}

#[derive(Subcommand)]
enum AdminCommand {
    /// Nodes: drain, resume, down, remove
    #[command(subcommand)]
    Node(node::NodeAct),
    /// Single GPUs: quarantine, return, cut
    #[command(subcommand)]
    Gpu(gpu::GpuAct),
    /// GPUs that jobs hold and do not use: report
    #[command(subcommand)]
    Idle(idle::IdleAct),
    /// Jobs: update, hold, release, requeue
    #[command(subcommand)]
    Job(job::JobAct),
    /// Receivers of events: list, resume
    #[command(subcommand)]
    Webhook(webhook::WebhookAct),
    /// Tokens with which machines join, and those of users: list, revoke
    #[command(subcommand)]
    Token(token::TokenAct),
    /// Accounts that jobs are charged to: add, set, del, list, show
    #[command(subcommand)]
    Account(account::AccountAct),
    /// Users of accounts: add, set, del, list
    #[command(subcommand)]
    User(user::UserAct),
    /// What accounts are guaranteed, may hold and lend: set, list, show
    #[command(subcommand)]
    Quota(quota::QuotaAct),
    /// Bills of months: close, correct
    #[command(subcommand)]
    Bill(bill::BillAct),
    /// Qualities of service: add, set, del, list, show
    #[command(subcommand)]
    Qos(qos::QosAct),
    /// Partitions beside those of the files: add, set, del, show
    #[command(subcommand)]
    Partition(partition::PartitionAct),
    /// Reservations and maintenance windows: add, set, del, list, show
    #[command(subcommand)]
    Reservation(reservation::ReservationAct),
    /// The whole policy as TOML: export, import
    #[command(subcommand)]
    Policy(document::PolicyAct),
    /// Where accounts and users stand in the fair tree, and why
    Share(share::ShareArgs),
    /// Licences of the cluster: list
    #[command(subcommand)]
    Licence(document::LicenceAct),
    /// Switches: import, show
    #[command(subcommand)]
    Topology(topology::TopologyAct),
    /// Move a site here: what its batch system has, as gpupool's files
    #[command(subcommand)]
    Import(import::ImportAct),
    /// Read the controller's configuration again; a bad one is refused as a whole
    Reload(controller::ReloadArgs),
    /// Write the jobs that are over as a trace, for gsim run --trace: what another policy would have done with them
    ExportTrace(export_trace::ExportArgs),
    /// Write a copy of the controller's database
    Backup(controller::BackupArgs),
    /// Put a copy of the database in place of the lost one; the controller must be stopped
    Restore(controller::RestoreArgs),
    /// How the controller is doing
    Diag(controller::JsonArgs),
    /// Check the controller's state for contradictions
    Check(controller::JsonArgs),
    /// The configuration in force, as one line of JSON
    Config,
    /// Write the manual pages of all commands
    Man(pages::ManArgs),
    /// Print a shell's completions for all commands
    Completions(pages::CompletionArgs),
    /// Links for programs that call Slurm: sbatch, squeue and so on to gslurm; prints what to put into PATH
    SlurmNames(slurm_names::NamesArgs),
    /// Lines for ~/.ssh/config, with keys of their own: `ssh gpupool-17` is then a shell in job 17
    SshConfig,
    /// A whole cluster on this machine: real daemons, simulated GPUs
    Sandbox(sandbox::SandboxArgs),
}

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: AdminArgs::command(),
        section: "8",
        exit_status: "",
        see_also: "gq(1), gnodes(1), gacct(1), gpuctld.toml(5), gpud.toml(5), gpuctld(8), gpud(8), gpupool(7)",
    }
}

/// `gadm` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Result<ExitCode, Failure> {
    let matches = command_line::parse(AdminArgs::command(), words)?;
    let args = AdminArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    carry_out(args.what).map(ExitCode::from)
}

fn carry_out(what: AdminCommand) -> Outcome {
    let client = || gcli::connect("gadm");
    match what {
        AdminCommand::Node(act) => node::run(&mut client()?, act),
        AdminCommand::Gpu(act) => gpu::run(&mut client()?, act),
        AdminCommand::Idle(act) => idle::run(&mut client()?, act),
        AdminCommand::Job(act) => job::run(&mut client()?, act),
        AdminCommand::Webhook(act) => webhook::run(&mut client()?, act),
        AdminCommand::Token(act) => token::run(&mut client()?, act),
        AdminCommand::Account(act) => account::run(&mut client()?, act),
        AdminCommand::User(act) => user::run(&mut client()?, act),
        AdminCommand::Quota(act) => quota::run(&mut client()?, act),
        AdminCommand::Bill(act) => bill::run(&mut client()?, act),
        AdminCommand::Partition(act) => partition::run(&mut client()?, act),
        AdminCommand::Qos(act) => qos::run(&mut client()?, act),
        AdminCommand::Reservation(act) => reservation::run(&mut client()?, act),
        AdminCommand::Policy(act) => document::run(&mut client()?, act),
        AdminCommand::Share(args) => share::run(&mut client()?, &args),
        AdminCommand::Licence(act) => document::licences(&mut client()?, act),
        AdminCommand::Topology(act) => topology::run(act, client),
        AdminCommand::Import(act) => import::run(&act),
        AdminCommand::Reload(args) => controller::reload(&mut client()?, &args),
        AdminCommand::ExportTrace(args) => export_trace::run(&mut client()?, &args),
        AdminCommand::Backup(args) => controller::backup(&mut client()?, &args),
        AdminCommand::Restore(args) => controller::restore(&args),
        AdminCommand::Diag(args) => controller::diag(&mut client()?, &args),
        AdminCommand::Check(args) => controller::check(&mut client()?, &args),
        AdminCommand::Config => controller::config(&mut client()?),
        AdminCommand::Man(args) => pages::man(&args, page()),
        AdminCommand::Completions(args) => pages::completions(&args, page()),
        AdminCommand::SlurmNames(args) => slurm_names::run(&args),
        AdminCommand::SshConfig => ssh_config::run(),
        AdminCommand::Sandbox(args) => {
            sandbox::run(args).map_err(|error| Failure::new(format_args!("{error:#}")))?;
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        AdminArgs::command().debug_assert();
    }
}
