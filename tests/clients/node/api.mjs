// One life cycle through the official client, unchanged. Reads a setting from standard input, prints a report.
import OpenAI, { toFile } from "openai";
import { readFileSync } from "node:fs";

const setting = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: setting.base_url, apiKey: setting.key });
const failures = [];

function check(holds, what) {
  if (!holds) failures.push(what);
}

async function raises(kind, code, what, ask) {
  try {
    await ask();
    failures.push(`${what}: nothing was raised`);
  } catch (error) {
    const is_right = error instanceof kind && (code === null || error.code === code);
    if (!is_right) failures.push(`${what}: ${error.constructor.name} ${error.code} ${error.message}`);
    return error;
  }
}

async function until(retrieve, statuses) {
  const deadline = Date.now() + setting.patience_s * 1000;
  for (;;) {
    const found = await retrieve();
    if (statuses.includes(found.status) || Date.now() > deadline) return found;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

const upload = async (text, purpose) => client.files.create({ file: await toFile(Buffer.from(text), "data.jsonl"), purpose });
const requests = async (model) =>
  client.batches.create({
    input_file_id: (await upload(setting.lines.replaceAll("MODEL", model), "batch")).id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });

const names = [];
for await (const model of client.models.list()) names.push(model.id);
check(names.includes("tiny"), `models ${names}`);
const stranger = new OpenAI({ baseURL: setting.base_url, apiKey: "sk-another" });
await raises(OpenAI.AuthenticationError, "invalid_api_key", "another key", () => stranger.models.list());
const broken = await raises(OpenAI.BadRequestError, "invalid_jsonl", "line 17", () => upload(setting.broken, "fine-tune"));
check(broken?.message.includes("line 17"), `the line is not named: ${broken?.message}`);

const rows = await upload(setting.rows, "fine-tune");
const wanted = { model: "tiny", training_file: rows.id, hyperparameters: { n_epochs: 32, batch_size: 2 } };
let job = await client.fineTuning.jobs.create(wanted);
check(Number(job.dekube.reserved) > 0, "no price");
await raises(OpenAI.RateLimitError, "insufficient_quota", "the budget", () => client.fineTuning.jobs.create(wanted));
const dropped = await requests("tiny");
check((await client.batches.cancel(dropped.id)).status === "cancelling", "a cancelled batch");
job = await until(() => client.fineTuning.jobs.retrieve(job.id), ["succeeded", "failed", "cancelled"]);
check(job.status === "succeeded", `the job: ${JSON.stringify(job.error)}`);
const told = [];
for await (const event of client.fineTuning.jobs.listEvents(job.id)) told.push(event.message);
check(told[0] === "The job is done.", `events ${told}`);
const points = await client.fineTuning.jobs.checkpoints.list(job.id);
check(points.data.length === 1 && points.data[0].step_number === 128, "checkpoints");
const receipt = await (await client.files.content(job.dekube.receipt_file)).json();
check(receipt.task === job.dekube.task && receipt.phase === "settled", "the receipt");

let batch = await requests(job.fine_tuned_model);
batch = await until(() => client.batches.retrieve(batch.id), ["completed", "failed", "expired", "cancelled"]);
check(batch.status === "completed" && batch.request_counts.failed === 0, `the batch: ${JSON.stringify(batch)}`);
const answers = batch.output_file_id ? await (await client.files.content(batch.output_file_id)).text() : "";
const found = answers.split("\n").filter((line) => line).map((line) => JSON.parse(line).response.body);
check(found.every((body) => typeof body.choices[0].message.content === "string"), "answers without a text");
const cancelled = await until(() => client.batches.retrieve(dropped.id), ["cancelled", "completed", "failed"]);
check(cancelled.status === "cancelled", `the dropped batch: ${cancelled.status}`);
check((await client.models.delete(job.fine_tuned_model)).deleted, "the tuned model is not deleted");
await raises(OpenAI.NotFoundError, "model_not_found", "a deleted model", () => client.models.retrieve(job.fine_tuned_model));
console.log(JSON.stringify({ answers: found.length, events: told.length, failures }));
