"""A convolutional network in a plain loop: workers, pinned memory, evaluation, checkpoints."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--out", default="cnn.pt")
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,)))
train = DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=2, pin_memory=True)
test = DataLoader(data, batch_size=args.batch)

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model = model.to(device)
criterion = nn.CrossEntropyLoss()
best = 0.0
for _ in range(args.epochs):
    model.train()
    for x, y in train:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = criterion(model(x), y)
        if torch.isnan(loss):
            raise SystemExit("the loss is NaN")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3f}, {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in test:
            correct += (model(x.to(device)).argmax(1).cpu() == y).sum().item()
    if correct / len(data) >= best:
        best = correct / len(data)
        torch.save(model.state_dict(), args.out)
